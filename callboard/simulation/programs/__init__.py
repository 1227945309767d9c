"""Programs of plain asyncio as hosts of a simulated cluster."""

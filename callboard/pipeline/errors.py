"""The errors of the pipeline.

    PipelineError
    ├── SparkMissing    (ImportError) Spark or Java cannot be found
    ├── InvalidSetting   (ValueError) an option of the source or sink is invalid
    ├── DataLost        records that a query must read are gone
    ├── Undecodable     (ValueError) a payload does not fit the schema
    └── PublishFailed   (OSError) results could not be published

Spark's workers import this module for each task. So these are not `CallboardError`s: that
module would load the actors.
"""


class PipelineError(Exception):
    """Root of all errors of the pipeline."""


class SparkMissing(PipelineError, ImportError):
    """Spark, or a Java that can run it, is not installed."""


class InvalidSetting(PipelineError, ValueError):
    """An option of the source, of the sink or of a command is invalid."""


class DataLost(PipelineError):
    """Records that a query must read are no longer, or not yet, in the log."""


class Undecodable(PipelineError, ValueError):
    """A payload does not fit the requested schema."""


class PublishFailed(PipelineError, OSError):
    """Results could not be published; nothing of their batch is visible."""

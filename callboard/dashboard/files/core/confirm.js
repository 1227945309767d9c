// A button that asks for confirmation.
import { html, useState, useEffect } from "../vendor/preact.js";

export const ConfirmButton = ({ label, run }) => {
  const [isAsked, setAsked] = useState(false);
  useEffect(() => {
    if (!isAsked) return undefined;
    const over = setTimeout(() => setAsked(false), 5000);
    return () => clearTimeout(over);
  }, [isAsked]);
  return html`<button class="danger" onClick=${() => {
    if (isAsked) run();
    setAsked(!isAsked);
  }}>${isAsked ? `really ${label}?` : label}</button>`;
};

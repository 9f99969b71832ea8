// What the page does better with a script, besides what htmx does from its attributes.
"use strict";

const offline = () => document.getElementById("offline");

// A notice is said once: a reload must not say it again.
const here = new URL(location.href);
if (here.searchParams.has("notice")) {
  here.searchParams.delete("notice");
  history.replaceState(null, "", here);
}

// A hidden page asks for nothing; it catches up at its next pulse.
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden && event.detail.pathInfo.requestPath.startsWith("/pulse")) event.preventDefault();
});

// No answer came. For a click that means: it may have been applied or not, so the heart shows
// neither, until the next pulse knows.
function noAnswer(event) {
  offline().hidden = false;
  const heart = event.detail.elt.querySelector?.(".heart");
  if (!heart) return;
  heart.disabled = true;
  heart.removeAttribute("aria-pressed");
  heart.dataset.state = "unknown";
  heart.querySelector(".count").textContent = "?";
  const seen = event.detail.elt.querySelector("[name=seen]");
  seen.value = seen.value.split(".")[0] + ".x";
}
// Whoever clicks by keyboard keeps the heart under the fingers, whatever was swapped meanwhile.
let held = "";
document.addEventListener("focusin", (event) => { held = event.target.id ?? ""; });
document.addEventListener("htmx:afterSettle", () => {
  if (held.startsWith("heart-") && document.activeElement === document.body) {
    document.getElementById(held)?.focus({ preventScroll: true });
  }
});

document.addEventListener("htmx:sendError", noAnswer);
document.addEventListener("htmx:timeout", noAnswer);
document.addEventListener("htmx:afterOnLoad", () => { offline().hidden = true; });

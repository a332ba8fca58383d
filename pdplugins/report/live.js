"use strict";
// Looks again now and then, and puts what it gets where the old is: the page is made by the process that it shows.
const EVERY_MS = 2000;
const state = document.getElementById("state"), pause = document.getElementById("pause");
let paused = false, answered = new Date();
pause.hidden = false;
pause.onclick = () => {
  paused = !paused;
  pause.textContent = paused ? "Go on" : "Pause";
  if (paused) state.textContent = `Paused at ${new Date().toLocaleTimeString()}.`;
};
function put(fresh) {
  const old = document.querySelector("main");
  const summaries = [...old.querySelectorAll("summary")];
  const open = summaries.map(one => one.parentElement.open);
  const focused = summaries.indexOf(document.activeElement);
  old.replaceWith(document.adoptNode(fresh));
  [...fresh.querySelectorAll("summary")].forEach((one, index) => {
    one.parentElement.open = Boolean(open[index]);
    if (index === focused) one.focus({ preventScroll: true });
  });
}
async function look() {
  if (paused || document.hidden) return;
  try {
    const answer = await fetch("/", { cache: "no-store", signal: AbortSignal.timeout(5 * EVERY_MS) });
    if (!answer.ok) throw new Error(String(answer.status));
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (paused) return;
    put(fresh.querySelector("main"));
    document.title = fresh.title;
    answered = new Date();
    state.textContent = "";
  } catch {
    state.textContent = `No answer since ${answered.toLocaleTimeString()}: what is shown is old.`;
  }
}
setInterval(look, EVERY_MS);

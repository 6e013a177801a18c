// Keeps an open page up to date. Every value from the server becomes a text or one of a few
// attributes, never markup.
"use strict";

(() => {
  const where = document.body.dataset.events;
  const live = document.getElementById("live");
  const attributes = ["aria-current", "aria-label", "class", "d", "href"];
  const inside = /^(?:\.|(?:pod|gang|group|search)\?)/; // the only addresses that a link may get

  function set(element, name, value) {
    if (name === "text") element.textContent = value;
    else if (name === "hidden") element.toggleAttribute("hidden", value !== "");
    else if (name === "href" && !inside.test(value)) return;
    else if (attributes.includes(name)) element.setAttribute(name, value);
  }

  function show(event) {
    const began = performance.now();
    for (const [id, values] of Object.entries(JSON.parse(event.data))) {
      const element = document.getElementById(id);
      if (element === null) continue;
      for (const [name, value] of Object.entries(values)) set(element, name, value);
    }
    performance.measure("linkwise-change", { start: began });
  }

  function say(words) {
    if (live.textContent !== words) live.textContent = words;
  }

  // Loads the page again, once there is one: while the leader changes, an error would replace it.
  function reloadIn(seconds) {
    setTimeout(async () => {
      const answer = await fetch(location.href, { method: "HEAD" }).catch(() => null);
      if (answer?.ok) location.reload();
      else reloadIn(5);
    }, 1000 * seconds);
  }

  function open() {
    const events = new EventSource(where);
    events.addEventListener("open", () => say("live"));
    events.addEventListener("change", show);
    events.addEventListener("reload", () => {
      events.close();
      reloadIn(1); // not at once: a cluster that grows would load it again and again
    });
    events.addEventListener("gone", () => {
      events.close();
      say("not live: what this page shows is gone");
      reloadIn(60); // a gang that is created again has the same name
    });
    events.addEventListener("error", () => {
      if (events.readyState !== EventSource.CLOSED) {
        say("not live: connecting again");
        return;
      }
      say("not live: the extender accepts no more viewers now, or is not ready");
      reloadIn(30);
    });
  }

  open();
})();

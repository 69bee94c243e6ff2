// Pointer, keyboard and buttons of the maps.
function targetOf(item, job) {
  if (item.dataset.rank !== undefined) return { type: "rank", rank: Number(item.dataset.rank) };
  return { type: "box", index: Number(item.dataset.block), job: job.index };
}

function wireMap(map, lights, maps) {
  const { viewport } = map;
  const item = (event) => event.target.closest(".cell, .tile");
  const open = (index, wanted) => openAt(map.boxes[index].ranks[0], maps, wanted);
  viewport.addEventListener("pointerover", (event) => {
    if (event.pointerType !== "touch" && item(event)) lights.point(targetOf(item(event), map.job));
  });
  viewport.addEventListener("pointerleave", () => lights.point(null));
  viewport.addEventListener("focusin", (event) => {
    if (!item(event)) return;
    map.takesFocus(item(event));
    if (event.target.matches(":focus-visible")) lights.point(targetOf(item(event), map.job));
  });
  viewport.addEventListener("focusout", (event) => {
    if (!viewport.contains(event.relatedTarget)) lights.point(null);
  });
  viewport.addEventListener("click", (event) => {
    const name = event.target.closest(".box-name");
    if (name) return open(Number(name.parentElement.dataset.block), name.parentElement.classList.contains("closed"));
    return item(event) && choose(item(event));
  });
  viewport.addEventListener("keydown", (event) => {
    const at = item(event);
    if (!at) return;
    if (event.key === "Enter" || event.key === " ") choose(at);
    else if (["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) {
      map.focusOn(map.neighbour(at, event.key));
    } else return;
    event.preventDefault();
  });
  function choose(at) {
    if (at.classList.contains("tile")) {
      lights.point(null);
      open(Number(at.dataset.block), true);
    } else lights.keep(targetOf(at, map.job));
  }
}

/** Open or close the box of a rank in every map that has it. */
function openAt(rank, maps, wanted) {
  for (const map of maps) if (map.job.has(rank)) map.toggle(map.job.blockOf(rank), wanted);
}

/** Scrolling one map scrolls the other: the same ranks stay beside each other. */
function scrollTogether(maps) {
  for (const map of maps) {
    map.viewport.addEventListener(
      "scroll",
      () => maps.forEach((other) => {
        if (other !== map && other.viewport.scrollTop !== map.viewport.scrollTop) other.viewport.scrollTop = map.viewport.scrollTop;
      }),
      { passive: true },
    );
  }
}

function wireZoom(root, maps, section) {
  let level = 0;
  const set = (wanted) => {
    level = Math.max(0, Math.min(ZOOMS - 1, wanted));
    maps.forEach((map) => map.zoom(level));
    section.dataset.zoom = level;
    find('[data-zoom-by="-1"]', root).disabled = level === 0;
    find('[data-zoom-by="1"]', root).disabled = level === ZOOMS - 1;
  };
  const fit = () => {
    if (maps[0].closes) return set(FIRST_ZOOM_OF_CLOSED);
    let wanted = maps[0].job.world > 512 ? 2 : ZOOMS - 1;
    while (wanted > 0 && !maps[0].fits(wanted)) wanted -= 1;
    return set(wanted);
  };
  root.addEventListener("click", (event) => {
    const button = event.target.closest("[data-zoom-by]");
    if (!button) return;
    if (button.dataset.zoomBy === "0") fit();
    else set(level + Number(button.dataset.zoomBy));
  });
  fit();
  window.addEventListener("resize", () => set(level));
}

/** The buttons that choose what a map is coloured by. */
function wireColourings(root, maps, legends) {
  const buttons = findAll("button[data-colouring]", root);
  root.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-colouring]");
    if (!button) return;
    buttons.forEach((each) => each.setAttribute("aria-checked", String(each === button)));
    maps.forEach((map) => map.colourBy(button.dataset.colouring));
    legends.forEach((legend) => legend.draw());
    const caption = find(".caption", root);
    if (caption) caption.textContent = button.title;
  });
  root.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const at = buttons.indexOf(document.activeElement);
    if (!step || at < 0) return;
    const next = buttons[(at + step + buttons.length) % buttons.length];
    next.focus();
    next.click();
  });
}

/** Light the rank that was typed; of one that no job has, the form says so. */
function wireFind(form, jobs, lights, maps) {
  const field = find("input", form);
  const said = find("output", form);
  const say = (text) => {
    said.textContent = text;
    field.setAttribute("aria-invalid", String(text !== ""));
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const typed = field.value.trim();
    const rank = /^\d+$/.test(typed) ? Number(typed) : null;
    if (!jobs.some((job) => job.has(rank))) {
      const known = [...new Set(jobs.map(rankSpan))].join(" and ");
      return say(`${typed === "" ? "type a number" : `no rank ${typed}`}: there ${known}`);
    }
    say("");
    openAt(rank, maps, true);
    if (!sameTarget(lights.kept, { type: "rank", rank })) lights.keep({ type: "rank", rank });
    maps.forEach((map) => map.cells.get(rank)?.scrollIntoView({ block: "nearest" }));
    return undefined;
  });
  field.addEventListener("input", () => say(""));
}

function rankSpan({ first, world }) {
  return world === 1 ? `is rank ${first} only` : `are ranks ${first} to ${first + world - 1}`;
}

function wirePanel(panel, lights) {
  const target = (event) => {
    const chip = event.target.closest(".chip");
    return chip && chipTarget(chip, panel.job);
  };
  const point = (event) => target(event) && lights.point(target(event));
  panel.root.addEventListener("pointerover", point);
  panel.root.addEventListener("focusin", point);
  panel.root.addEventListener("pointerleave", () => lights.point(null));
  panel.root.addEventListener("focusout", () => lights.point(null));
  panel.root.addEventListener("click", (event) => target(event) && lights.keep(target(event)));
}

/** Rows of a table that stand for groups light the group of the kept rank, or the first one. */
function wireGroups(root, job, lights) {
  const targetAt = (event) => {
    const row = event.target.closest("[data-group-kind]");
    if (!row || !job.groups[row.dataset.groupKind]) return null;
    const rank = lights.kept && lights.kept.type === "rank" ? lights.kept.rank : job.first;
    const kind = row.dataset.groupKind;
    return { type: "group", kind, group: job.groupOf(kind, rank), job: job.index };
  };
  root.addEventListener("pointerover", (event) => lights.point(targetAt(event)));
  root.addEventListener("pointerleave", () => lights.point(null));
  root.addEventListener("focusin", (event) => lights.point(targetAt(event)));
  root.addEventListener("focusout", () => lights.point(null));
  root.addEventListener("click", (event) => {
    const target = targetAt(event);
    if (target) lights.keep(target);
  });
}

function wireTheme(button) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const label = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `switch to ${isDark() ? "light" : "dark"} colours`);
  };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    label();
  });
  dark.addEventListener("change", label);
  label();
}

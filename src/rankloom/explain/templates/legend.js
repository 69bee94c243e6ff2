// The legend of a map: its values to point at and to keep.
const MOST_SWATCHES = 16;

class Legend {
  constructor(root, map, lights) {
    Object.assign(this, { root, map, lights });
    root.addEventListener("pointerover", (event) => this.over(event));
    root.addEventListener("pointerleave", () => lights.point(null));
    root.addEventListener("focusin", (event) => this.over(event));
    root.addEventListener("focusout", () => lights.point(null));
    root.addEventListener("click", (event) => this.chosen(event));
    root.addEventListener("change", (event) => this.typed(event));
    lights.listeners.push(() => this.mark());
    this.draw();
  }

  draw() {
    const { map } = this;
    const count = map.job.count(map.colouring);
    this.root.replaceChildren(...(count <= MOST_SWATCHES ? this.swatches(count) : this.scale(count)));
    const name = map.colouring;
    if (name.startsWith("call:") && map.job.ranksWith(name, -1).length) this.root.append(this.swatch(-1, count));
    this.mark();
  }

  swatches(count) {
    return Array.from({ length: count }, (_, value) => this.swatch(value, count));
  }

  swatch(value, count) {
    const key = make("span", { class: value < 0 ? "key none" : "key" });
    if (value >= 0) key.style.background = colour(value, this.map.job.scale(this.map.colouring)).fill;
    return make("button", { type: "button", class: "swatch", "data-value": value }, key, this.map.valueName(value));
  }

  scale(count) {
    const steps = Math.min(count, 64);
    const stops = Array.from({ length: steps }, (_, i) => {
      const { fill } = colour(Math.round((i * (count - 1)) / (steps - 1)), count);
      return `${fill} ${(100 * i) / steps}% ${(100 * (i + 1)) / steps}%`;
    });
    const bar = make("span", { class: "scale", "aria-hidden": "true" });
    bar.style.background = `linear-gradient(90deg,${stops.join(",")})`;
    if (this.map.colouring === "part") {
      const [first, last] = [0, count - 1].map((value) => make("span", { class: "end" }, this.map.valueName(value)));
      return [first, bar, last];
    }
    const label = this.map.valueName(0).replace(/ 0$/, "");
    const field = make("input", { type: "number", min: 0, max: count - 1, inputmode: "numeric", placeholder: "all", "aria-label": `keep one ${label} lit` });
    return [make("span", { class: "end" }, `${label} 0`), bar, make("span", { class: "end" }, number(count - 1)), make("label", { class: "pick" }, `only ${label}`, field)];
  }

  target(element) {
    const swatch = element.closest(".swatch");
    if (!swatch) return null;
    return { type: "value", name: this.map.colouring, value: Number(swatch.dataset.value), job: this.map.job.index };
  }

  over(event) {
    const target = this.target(event.target);
    if (target) this.lights.point(target);
  }

  chosen(event) {
    const target = this.target(event.target);
    if (target) this.lights.keep(target);
  }

  typed(event) {
    const value = event.target.value;
    if (value === "" || !event.target.checkValidity()) return this.lights.clear();
    const target = { type: "value", name: this.map.colouring, value: Number(value), job: this.map.job.index };
    if (!sameTarget(target, this.lights.kept)) this.lights.keep(target);
    return undefined;
  }

  mark() {
    for (const swatch of findAll(".swatch", this.root)) {
      swatch.setAttribute("aria-pressed", String(sameTarget(this.target(swatch), this.lights.kept)));
    }
  }
}

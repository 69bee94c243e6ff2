// Colours that stay apart for colour-blind eyes. Few values: eight colours, chosen for their distance under
// three kinds of colour blindness. Many: hue and lightness rise together, every other value a little lighter.
const FEW = [
  [0.482, 0.156, 259],
  [0.852, 0.16, 92],
  [0.72, 0.12, 190],
  [0.529, 0.139, 45],
  [0.857, 0.075, 228],
  [0.36, 0.133, 334],
  [0.94, 0.071, 113],
  [0.6, 0.07, 345],
];

/** {fill, ink} of value `value` among `count`: CSS colours of the area and of text on it. */
function colour(value, count) {
  const [lightness, chroma, hue] = count <= FEW.length ? FEW[value] : ramp(value / (count - 1), value % 2);
  return {
    fill: `oklch(${lightness.toFixed(3)} ${chroma.toFixed(3)} ${hue.toFixed(0)})`,
    ink: lightness > 0.58 ? "oklch(0.2 0.02 260)" : "oklch(0.99 0 0)",
  };
}

function ramp(t, odd) {
  const lightness = 0.36 + 0.5 * t + (odd ? 0.05 : -0.02);
  return [lightness, 0.115 + 0.045 * Math.sin(Math.PI * t), (262 + 195 * t) % 360];
}

//! Bars as plain SVG, one below the other: what each came to, with the quartiles as a whisker. No state.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::chart::{Axis, COLOURS, Scale, shown, write_text};
use super::spread::Spread;

const WIDTH: f64 = 840.0;
const LEFT: f64 = 330.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 50.0;
const STEP: f64 = 24.0;
/// Between two sets of bars.
const GAP: f64 = 14.0;

#[derive(Serialize, Deserialize)]
pub struct Bar {
    pub label: String,
    pub value: Spread,
}

/// Bars that belong together.
#[derive(Serialize, Deserialize)]
pub struct BarSet {
    pub name: String,
    pub bars: Vec<Bar>,
}

/// Some sets, on one scale.
#[derive(Serialize, Deserialize)]
pub struct Bars {
    pub title: String,
    pub x_label: String,
    #[serde(rename = "is_logarithmic")]
    pub scale: Scale,
    pub sets: Vec<BarSet>,
}

impl Bars {
    pub fn height(&self) -> f64 {
        let bars: usize = self.sets.iter().map(|set| set.bars.len()).sum();
        TOP + BOTTOM + bars as f64 * STEP + self.sets.len() as f64 * (STEP + GAP)
    }

    pub fn svg(&self) -> String {
        let (height, bars) = (self.height(), || self.sets.iter().flat_map(|set| &set.bars));
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
        );
        let axis = Axis::over(self.scale, bars().flat_map(|bar| [bar.value.low, bar.value.high]), LEFT..WIDTH - RIGHT);
        write_text(&mut svg, 12.0, TOP - 27.0, "start", "font-size=\"15\"", &self.title);
        write_text(&mut svg, (LEFT + WIDTH - RIGHT) / 2.0, height - 12.0, "middle", "", &self.x_label);
        for tick in axis.ticks() {
            let x = axis.place(tick);
            let _ = writeln!(svg, "<path d=\"M{x:.1} {TOP}V{:.1}\" stroke=\"#ddd\"/>", height - BOTTOM);
            write_text(&mut svg, x, height - BOTTOM + 16.0, "middle", "", &shown(tick));
        }
        let mut y = TOP;
        for (set, colour) in self.sets.iter().zip(COLOURS.iter().cycle()) {
            write_text(&mut svg, 12.0, y + 16.0, "start", "font-weight=\"bold\"", &set.name);
            y += STEP;
            for bar in &set.bars {
                write_bar(&mut svg, &axis, y, bar, colour);
                y += STEP;
            }
            y += GAP;
        }
        svg + "</svg>\n"
    }
}

fn write_bar(svg: &mut String, axis: &Axis, y: f64, Bar { label, value: spread }: &Bar, colour: &str) {
    let [low, median, high] = [spread.low, spread.median, spread.high].map(|value| axis.place(value).max(LEFT));
    write_text(svg, LEFT - 8.0, y + 14.0, "end", "", label);
    let _ = writeln!(
        svg,
        "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"14\" fill=\"{colour}\" fill-opacity=\"0.75\"/>",
        y + 3.0,
        median - LEFT
    );
    let _ = writeln!(svg, "<path d=\"M{low:.1} {:.1}H{high:.1}\" stroke=\"#000\" stroke-width=\"1.5\"/>", y + 10.0);
    let digits = if spread.median < 10.0 { 2 } else { 0 };
    write_text(svg, high + 6.0, y + 14.0, "start", "", &format!("{:.digits$}", spread.median));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bar_is_drawn_with_its_name_and_its_figure() {
        let bar = |label: &str, median: f64| Bar {
            label: label.into(),
            value: Spread::of([median / 2.0, median, median * 2.0]),
        };
        let set = |name: &str| BarSet { name: name.into(), bars: vec![bar("a < b", 4.0), bar("c", 400.0)] };
        let chart = |scale, sets| Bars { title: "t".into(), x_label: "µs".into(), scale, sets };
        for scale in [Scale::Linear, Scale::Logarithmic] {
            let svg = chart(scale, vec![set("one"), set("two")]).svg();
            assert_eq!(svg.matches("fill-opacity").count(), 4);
            assert!(
                svg.contains("a &lt; b") && svg.contains(">4.00<") && svg.contains(">400<") && !svg.contains("NaN")
            );
        }
        assert!(!chart(Scale::Linear, Vec::new()).svg().contains("NaN"));
    }
}

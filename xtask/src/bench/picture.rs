//! Line charts as plain SVG: one set of axes, a line for each series, both axes logarithmic. No state.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;
/// Told apart by those who do not see every colour too (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

pub struct Line {
    pub label: String,
    /// In ascending order of x; both above zero.
    pub points: Vec<(f64, f64)>,
}

pub fn chart(title: &str, x_label: &str, y_label: &str, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let across = Axis::over(points().map(|point| point.0), LEFT, WIDTH - RIGHT);
    let up = Axis::over(points().map(|point| point.1), HEIGHT - BOTTOM, TOP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    let mut text = |x: f64, y: f64, anchor: &str, extra: &str, text: &str| {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {extra}>{text}</text>");
    };
    text(LEFT, TOP - 22.0, "start", "font-size=\"15\"", title);
    text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 15.0, "middle", "", x_label);
    let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
    text(18.0, middle, "middle", &format!("transform=\"rotate(-90 18 {middle})\""), y_label);
    for tick in across.ticks() {
        text(across.place(tick), HEIGHT - BOTTOM + 18.0, "middle", "", &shown(tick));
    }
    for tick in up.ticks() {
        text(LEFT - 8.0, up.place(tick) + 4.0, "end", "", &shown(tick));
    }
    for (number, line) in lines.iter().enumerate() {
        text(WIDTH - RIGHT + 34.0, TOP + 20.0 * number as f64 + 4.0, "start", "", &line.label);
    }
    for tick in up.ticks() {
        let y = up.place(tick);
        let _ = writeln!(svg, "<path d=\"M{LEFT} {y:.1}H{:.1}\" stroke=\"#ddd\"/>", WIDTH - RIGHT);
    }
    for (number, line) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let places: Vec<(f64, f64)> = line.points.iter().map(|(x, y)| (across.place(*x), up.place(*y))).collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (x, y) in places {
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let (x, y) = (WIDTH - RIGHT + 12.0, TOP + 20.0 * number as f64);
        let _ = writeln!(svg, "<path d=\"M{x} {y}h18\" stroke=\"{colour}\" stroke-width=\"2\"/>");
    }
    svg + "</svg>\n"
}

/// A logarithmic axis from one place of the picture to another.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Axis {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(0.0, f64::max);
        let (low, high) = if low.is_finite() && low > 0.0 { (low, high) } else { (1.0, 10.0) };
        Axis { low: low / 1.15, high: high * 1.15, from, to }
    }

    fn place(&self, value: f64) -> f64 {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        self.from + share * (self.to - self.from)
    }

    /// 1, 2 and 5 of each power of ten.
    fn ticks(&self) -> Vec<f64> {
        let first = self.low.log10().floor() as i32;
        let all = (first..first + 12).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)));
        all.filter(|tick| (self.low..=self.high).contains(tick)).collect()
    }
}

fn shown(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", v / 1e6),
        v if v >= 1e3 => format!("{} k", v / 1e3),
        v => format!("{v}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lie_within_their_axes() {
        let axis = Axis::over([1.0, 100.0].into_iter(), 10.0, 110.0);
        assert!(axis.place(1.0) > 10.0 && axis.place(100.0) < 110.0);
        assert!((axis.place(10.0) - 60.0).abs() < 1e-9);
        assert_eq!(axis.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
    }

    #[test]
    fn a_chart_draws_every_line_and_survives_none() {
        let line = |label: &str| Line { label: label.into(), points: vec![(1.0, 10.0), (2.0, 30.0)] };
        let svg = chart("t", "x", "y", &[line("a < b"), line("c")]);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
        assert!(!chart("t", "x", "y", &[]).contains("NaN"));
    }
}

//! Line charts as plain SVG: one set of axes, a line for each series, the quartiles of each point as a bar. No state.

use std::fmt::Write;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::spread::Spread;

pub const WIDTH: f64 = 760.0;
pub const HEIGHT: f64 = 440.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;
/// Colours that colour-blind people can tell apart too (Okabe and Ito).
pub(super) const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

#[derive(Serialize, Deserialize)]
pub struct Line {
    label: String,
    /// In ascending order of x; both above zero where the scale is logarithmic.
    points: Vec<Point>,
}

#[derive(Serialize, Deserialize)]
struct Point {
    x: f64,
    y: Spread,
}

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "bool", into = "bool")]
pub enum Scale {
    Logarithmic,
    /// From zero.
    Linear,
}

impl From<bool> for Scale {
    fn from(is_logarithmic: bool) -> Scale {
        if is_logarithmic { Scale::Logarithmic } else { Scale::Linear }
    }
}

impl From<Scale> for bool {
    fn from(scale: Scale) -> bool {
        scale == Scale::Logarithmic
    }
}

#[derive(Serialize, Deserialize)]
pub struct Chart {
    pub title: String,
    pub x_label: String,
    pub y_label: String,
    /// The scale of both axes.
    #[serde(rename = "is_logarithmic")]
    pub scale: Scale,
    pub lines: Vec<Line>,
    /// A place on the x axis, and what happened there.
    #[serde(skip)]
    pub mark: Option<(f64, String)>,
    /// Lines of text below the names of the series.
    #[serde(skip)]
    pub notes: Vec<String>,
}

impl Chart {
    pub fn new(title: &str, [x_label, y_label]: [&str; 2], scale: Scale, lines: Vec<Line>) -> Chart {
        let (title, x_label, y_label) = (title.to_owned(), x_label.to_owned(), y_label.to_owned());
        Chart { title, x_label, y_label, scale, lines, mark: None, notes: Vec::new() }
    }

    pub fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let across = Axis::over(self.scale, points().map(|point| point.x), LEFT..WIDTH - RIGHT);
        let up = Axis::over(self.scale, points().flat_map(|Point { y, .. }| [y.low, y.high]), HEIGHT - BOTTOM..TOP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        self.write_frame(&mut svg, &across, &up);
        self.write_legend(&mut svg);
        if let Some((x, what)) = &self.mark {
            let x = across.place(*x);
            let bottom = HEIGHT - BOTTOM;
            let _ = writeln!(svg, "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#444\" stroke-dasharray=\"4 3\"/>");
            write_text(&mut svg, x, TOP - 5.0, "middle", "", what);
        }
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            line.write(&mut svg, &across, &up, colour);
        }
        svg + "</svg>\n"
    }

    fn write_frame(&self, svg: &mut String, across: &Axis, up: &Axis) {
        write_text(svg, LEFT, TOP - 27.0, "start", "font-size=\"15\"", &self.title);
        write_text(svg, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 15.0, "middle", "", &self.x_label);
        let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
        let turned = format!("transform=\"rotate(-90 18 {middle})\"");
        write_text(svg, 18.0, middle, "middle", &turned, &self.y_label);
        for tick in across.ticks() {
            write_text(svg, across.place(tick), HEIGHT - BOTTOM + 18.0, "middle", "", &shown(tick));
        }
        for tick in up.ticks() {
            let y = up.place(tick);
            write_text(svg, LEFT - 8.0, y + 4.0, "end", "", &shown(tick));
            let _ = writeln!(svg, "<path d=\"M{LEFT} {y:.1}H{:.1}\" stroke=\"#ddd\"/>", WIDTH - RIGHT);
        }
    }

    fn write_legend(&self, svg: &mut String) {
        let mut y = TOP;
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let x = WIDTH - RIGHT + 12.0;
            let _ = writeln!(svg, "<path d=\"M{x} {y}h18\" stroke=\"{colour}\" stroke-width=\"2\"/>");
            write_text(svg, x + 22.0, y + 4.0, "start", "", &line.label);
            y += 20.0;
        }
        for note in &self.notes {
            write_text(svg, WIDTH - RIGHT + 12.0, y + 14.0, "start", "fill=\"#444\"", note);
            y += 17.0;
        }
    }
}

impl Line {
    pub fn new(label: impl Into<String>, points: impl IntoIterator<Item = (f64, Spread)>) -> Line {
        Line { label: label.into(), points: points.into_iter().map(|(x, y)| Point { x, y }).collect() }
    }

    fn write(&self, svg: &mut String, across: &Axis, up: &Axis, colour: &str) {
        let place = |point: &Point| (across.place(point.x), up.place(point.y.median));
        let places: Vec<(f64, f64)> = self.points.iter().map(place).collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let path = path.join(" ");
        let _ = writeln!(svg, "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
        for ((x, y), Point { y: spread, .. }) in places.iter().zip(&self.points) {
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            if spread.low < spread.high {
                let (low, high) = (up.place(spread.low), up.place(spread.high));
                let _ =
                    writeln!(svg, "<path d=\"M{x:.1} {low:.1}V{high:.1}\" stroke=\"{colour}\" stroke-width=\"1.5\"/>");
            }
        }
    }
}

pub(super) fn write_text(svg: &mut String, x: f64, y: f64, anchor: &str, extra: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {extra}>{text}</text>");
}

/// An axis between two positions of the picture.
pub(super) struct Axis {
    scale: Scale,
    values: Range<f64>,
    places: Range<f64>,
}

impl Axis {
    pub(super) fn over(scale: Scale, values: impl Iterator<Item = f64> + Clone, places: Range<f64>) -> Axis {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(0.0, f64::max);
        let values = match scale {
            Scale::Linear => 0.0..if high > 0.0 { high } else { 1.0 },
            Scale::Logarithmic if low.is_finite() && low > 0.0 => low / 1.15..high * 1.15,
            Scale::Logarithmic => 1.0..10.0,
        };
        Axis { scale, values, places }
    }

    pub(super) fn place(&self, value: f64) -> f64 {
        let Range { start, end } = self.values;
        let share = match self.scale {
            Scale::Linear => (value - start) / (end - start),
            Scale::Logarithmic => (value / start).ln() / (end / start).ln(),
        };
        self.places.start + share * (self.places.end - self.places.start)
    }

    /// 1, 2 and 5 of each power of ten; or at most ten steps of such a number.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let Range { start, end } = self.values;
        let round = |first: i32| (first..first + 12).flat_map(|power| [1.0, 2.0, 5.0].map(|d| d * 10_f64.powi(power)));
        match self.scale {
            Scale::Logarithmic => {
                round(start.log10().floor() as i32).filter(|tick| (start..=end).contains(tick)).collect()
            }
            Scale::Linear => {
                let step = round(end.log10().floor() as i32 - 1).find(|step| end / step <= 10.0).unwrap_or(end);
                (0..=(end / step) as u64).map(|count| count as f64 * step).collect()
            }
        }
    }
}

pub(super) fn shown(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", v / 1e6),
        v if v >= 1e3 => format!("{} k", v / 1e3),
        v => format!("{v}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, lines: Vec<Line>) -> Chart {
        Chart::new("t", ["x", "y"], scale, lines)
    }

    fn line(label: &str, points: &[(f64, f64)]) -> Line {
        Line::new(label, points.iter().map(|(x, y)| (*x, Spread::once(*y))))
    }

    #[test]
    fn lines_lie_within_their_axes() {
        let axis = Axis::over(Scale::Logarithmic, [1.0, 100.0].into_iter(), 10.0..110.0);
        assert!(axis.place(1.0) > 10.0 && axis.place(100.0) < 110.0);
        assert!((axis.place(10.0) - 60.0).abs() < 1e-9);
        assert_eq!(axis.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        let axis = Axis::over(Scale::Linear, [40.0, 100.0].into_iter(), 10.0..110.0);
        assert_eq!((axis.place(0.0), axis.place(100.0)), (10.0, 110.0));
        assert_eq!(axis.ticks().len(), 11);
        let axis = Axis::over(Scale::Linear, [0.0, 25.0].into_iter(), 0.0..1.0);
        assert_eq!(axis.ticks(), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]);
    }

    #[test]
    fn a_chart_draws_every_line_and_survives_none() {
        let points = [(1.0, 10.0), (2.0, 30.0)];
        let svg = chart(Scale::Logarithmic, vec![line("a < b", &points), line("c", &points)]).svg();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
        for scale in [Scale::Logarithmic, Scale::Linear] {
            assert!(!chart(scale, Vec::new()).svg().contains("NaN"));
        }
    }

    #[test]
    fn a_mark_stands_where_it_happened() {
        let line = line("a", &[(0.0, 0.0), (10.0, 1.0)]);
        let svg = Chart { mark: Some((5.0, "then".into())), ..chart(Scale::Linear, vec![line]) }.svg();
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        assert!(svg.contains(&format!("M{middle:.1} {TOP}V")) && svg.contains(">then</text>"), "{svg}");
    }
}

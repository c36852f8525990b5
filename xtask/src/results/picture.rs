//! Charts in a file of SVG. They come from and go to JSON, so that a picture can be drawn again of what was measured.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::bars::{BarSet, Bars};
use super::chart::{Chart, HEIGHT, Line, Scale, WIDTH};
use super::spread::Spread;
use crate::Failure;

/// Charts one below the other, or bars, in a file of this name.
pub struct Picture {
    name: String,
    charts: Vec<Chart>,
    bars: Option<Bars>,
}

impl Picture {
    pub fn new(name: &str, charts: Vec<Chart>) -> Picture {
        Picture { name: name.to_owned(), charts, bars: None }
    }

    pub fn of_bars(name: &str, bars: Bars) -> Picture {
        Picture { name: name.to_owned(), charts: Vec::new(), bars: Some(bars) }
    }

    pub fn file(&self) -> String {
        format!("{}.svg", self.name)
    }

    pub fn save(&self, folder: &Path) -> Result<PathBuf, Failure> {
        let path = folder.join(self.file());
        std::fs::write(&path, self.svg())?;
        Ok(path)
    }

    pub fn svg(&self) -> String {
        if let Some(bars) = &self.bars {
            return bars.svg();
        }
        let height = HEIGHT * self.charts.len() as f64;
        let mut svg = format!("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\">\n");
        for (number, chart) in self.charts.iter().enumerate() {
            let y = HEIGHT * number as f64;
            let _ = writeln!(svg, "<svg y=\"{y}\" width=\"{WIDTH}\" height=\"{HEIGHT}\">\n{}</svg>", chart.svg());
        }
        svg + "</svg>\n"
    }

    /// Without marks and notes, which no kept picture has.
    pub fn to_json(&self) -> Value {
        let line = |line: &Line| {
            let points = line.points.iter().map(|(x, y)| json!({ "x": x, "y": y.to_json() })).collect::<Vec<_>>();
            json!({ "label": line.label, "points": points })
        };
        let chart = |chart: &Chart| {
            json!({
                "title": chart.title, "x_label": chart.x_label, "y_label": chart.y_label,
                "is_logarithmic": chart.scale == Scale::Logarithmic,
                "lines": chart.lines.iter().map(line).collect::<Vec<_>>(),
            })
        };
        let charts = self.charts.iter().map(chart).collect::<Vec<_>>();
        json!({ "name": self.name, "charts": charts, "bars": self.bars.as_ref().map(Bars::to_json) })
    }

    pub fn from_json(value: &Value) -> Result<Picture, Failure> {
        let charts = list(value, "charts")?.iter().map(Chart::from_json).collect::<Result<_, Failure>>()?;
        let bars = if value["bars"].is_object() { Some(Bars::from_json(&value["bars"])?) } else { None };
        Ok(Picture { name: text(value, "name")?.to_owned(), charts, bars })
    }
}

impl Bars {
    fn to_json(&self) -> Value {
        let set = |set: &BarSet| {
            let bar = |(label, spread): &(String, Spread)| json!({ "label": label, "value": spread.to_json() });
            json!({ "name": set.name, "bars": set.bars.iter().map(bar).collect::<Vec<_>>() })
        };
        json!({
            "title": self.title, "x_label": self.x_label, "is_logarithmic": self.scale == Scale::Logarithmic,
            "sets": self.sets.iter().map(set).collect::<Vec<_>>(),
        })
    }

    fn from_json(value: &Value) -> Result<Bars, Failure> {
        let bar = |bar: &Value| -> Result<(String, Spread), Failure> {
            Ok((text(bar, "label")?.to_owned(), Spread::from_json(&bar["value"])?))
        };
        let set = |set: &Value| -> Result<BarSet, Failure> {
            let bars = list(set, "bars")?.iter().map(bar).collect::<Result<_, Failure>>()?;
            Ok(BarSet { name: text(set, "name")?.to_owned(), bars })
        };
        let sets = list(value, "sets")?.iter().map(set).collect::<Result<_, Failure>>()?;
        let (title, x_label) = (text(value, "title")?.to_owned(), text(value, "x_label")?.to_owned());
        Ok(Bars { title, x_label, scale: scale_of(value), sets })
    }
}

fn scale_of(value: &Value) -> Scale {
    if value["is_logarithmic"] == true { Scale::Logarithmic } else { Scale::Linear }
}

impl Chart {
    fn from_json(value: &Value) -> Result<Chart, Failure> {
        let point = |point: &Value| -> Result<(f64, Spread), Failure> {
            Ok((point["x"].as_f64().ok_or("a point has no x")?, Spread::from_json(&point["y"])?))
        };
        let line = |line: &Value| -> Result<Line, Failure> {
            let points = list(line, "points")?.iter().map(point).collect::<Result<_, Failure>>()?;
            Ok(Line { label: text(line, "label")?.to_owned(), points })
        };
        let lines = list(value, "lines")?.iter().map(line).collect::<Result<_, Failure>>()?;
        let labels = [text(value, "x_label")?, text(value, "y_label")?];
        Ok(Chart::new(text(value, "title")?, labels, scale_of(value), lines))
    }
}

fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str, Failure> {
    value[name].as_str().ok_or_else(|| format!("a picture has no {name}").into())
}

fn list<'a>(value: &'a Value, name: &str) -> Result<&'a Vec<Value>, Failure> {
    value[name].as_array().ok_or_else(|| format!("a picture has no {name}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_drawn_again_of_its_json() {
        let points = vec![(1.0, Spread::of([1.0, 2.0, 3.0])), (2.0, Spread::once(4.0))];
        let chart = Chart::new("t", ["x", "y"], Scale::Linear, vec![Line { label: "a".into(), points }]);
        let picture = Picture::new("p", vec![chart]);
        assert_eq!(picture.svg().matches("stroke-width=\"1.5\"").count(), 1, "a bar where turns differ");
        assert_eq!(Picture::from_json(&picture.to_json()).unwrap().svg(), picture.svg());
        let set = BarSet { name: "s".into(), bars: vec![("b".into(), Spread::of([1.0, 2.0, 3.0]))] };
        let (title, x_label, scale) = ("t".into(), "x".into(), Scale::Logarithmic);
        let picture = Picture::of_bars("p", Bars { title, x_label, scale, sets: vec![set] });
        assert_eq!(Picture::from_json(&picture.to_json()).unwrap().svg(), picture.svg());
        assert!(Picture::from_json(&json!({})).is_err());
    }
}

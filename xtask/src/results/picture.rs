//! Charts in a file of SVG. They come from and go to JSON, so that a picture can be drawn again of what was measured: all but marks and
//! notes, which no kept picture has.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::bars::Bars;
use super::chart::{Chart, HEIGHT, WIDTH};
use crate::Failure;

/// Charts one below the other, or bars, in a file of this name.
#[derive(Serialize, Deserialize)]
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::bars::{Bar, BarSet};
    use crate::results::chart::{Line, Scale};
    use crate::results::spread::Spread;

    fn drawn_again(picture: &Picture) -> String {
        serde_json::from_str::<Picture>(&serde_json::to_string(picture).unwrap()).unwrap().svg()
    }

    #[test]
    fn a_picture_is_drawn_again_of_its_json() {
        let points = [(1.0, Spread::of([1.0, 2.0, 3.0])), (2.0, Spread::once(4.0))];
        let chart = Chart::new("t", ["x", "y"], Scale::Linear, vec![Line::new("a", points)]);
        let picture = Picture::new("p", vec![chart]);
        assert_eq!(picture.svg().matches("stroke-width=\"1.5\"").count(), 1, "a bar where turns differ");
        assert_eq!(drawn_again(&picture), picture.svg());
        let set =
            BarSet { name: "s".into(), bars: vec![Bar { label: "b".into(), value: Spread::of([1.0, 2.0, 3.0]) }] };
        let (title, x_label, scale) = ("t".into(), "x".into(), Scale::Logarithmic);
        let picture = Picture::of_bars("p", Bars { title, x_label, scale, sets: vec![set] });
        assert_eq!(drawn_again(&picture), picture.svg());
        assert!(serde_json::from_str::<Picture>("{}").is_err());
    }
}

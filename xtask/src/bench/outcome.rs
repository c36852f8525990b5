//! What a row found: a table of the entrants, figures held against what they are to reach, both printed as Markdown and kept
//! as JSON beside it.

use std::fmt::Write;
use std::path::PathBuf;

use serde_json::{Value, json};
use tapetum_bench::latencies::quantile_us;

use super::series::{Series, Spread};
use super::stalls::Watch;
use crate::Failure;
use crate::arguments::Arguments;
use crate::rows::Missed;

pub struct Outcome {
    row: &'static str,
    about: String,
    /// Where it is kept.
    folder: PathBuf,
    series: Vec<Series>,
    /// What the columns of the lines are, the name of a line first.
    columns: Vec<String>,
    lines: Vec<(String, Vec<Spread>)>,
    held: Vec<Held>,
    /// From the beginning on.
    watch: Watch,
}

struct Held {
    what: String,
    found: Spread,
    reach: Reach,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reach {
    AtLeast(f64),
    AtMost(f64),
    Reported,
}

impl Reach {
    fn kept(self, found: f64) -> bool {
        match self {
            Reach::AtLeast(least) => found >= least,
            Reach::AtMost(most) => found <= most,
            Reach::Reported => true,
        }
    }
}

impl std::fmt::Display for Reach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reach::AtLeast(least) => write!(f, "≥ {least}"),
            Reach::AtMost(most) => write!(f, "≤ {most}"),
            Reach::Reported => f.write_str("reported"),
        }
    }
}

impl Outcome {
    pub fn new(arguments: &Arguments, row: &'static str, about: String) -> Outcome {
        let (series, columns, lines, held) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Outcome { row, about, folder: arguments.results(), series, columns, lines, held, watch: Watch::begin() }
    }

    pub fn series(&mut self, series: impl IntoIterator<Item = Series>) {
        self.series.extend(series);
    }

    /// A table of figures of its own: what its columns are.
    pub fn columns(&mut self, names: &[&str]) {
        self.columns = names.iter().map(|name| (*name).to_owned()).collect();
    }

    /// A line of it: a name, and a figure for each other column.
    pub fn line(&mut self, name: impl Into<String>, figures: Vec<Spread>) {
        assert_eq!(figures.len() + 1, self.columns.len(), "a figure for each column");
        self.lines.push((name.into(), figures));
    }

    pub fn hold(&mut self, what: impl Into<String>, found: Spread, reach: Reach) {
        self.held.push(Held { what: what.into(), found, reach });
    }

    /// Prints it, keeps it beside the target folder's other results, and fails if something was not reached.
    pub fn end(self) -> Result<(), Failure> {
        let (markdown, mut json) = (self.markdown(), self.json());
        let stalls = self.watch.end();
        let markdown = format!("{markdown}\n{stalls}\n");
        json["stalls"] = stalls.to_json();
        println!("\n{markdown}");
        std::fs::create_dir_all(&self.folder)?;
        let path = |extension: &str| self.folder.join(format!("{}.{extension}", self.row));
        std::fs::write(path("md"), markdown)?;
        std::fs::write(path("json"), format!("{json:#}\n"))?;
        println!("kept as {} and .json", path("md").display());
        let missed = self.held.iter().filter(|held| !held.reach.kept(held.found.median));
        let missed: Vec<&str> = missed.map(|held| held.what.as_str()).collect();
        if missed.is_empty() { Ok(()) } else { Err(Missed(missed.join("; ")).into()) }
    }

    fn json(&self) -> Value {
        json!({
            "row": self.row,
            "about": self.about,
            "entrants": self.series.iter().map(Series::to_json).collect::<Vec<_>>(),
            "columns": self.columns,
            "lines": self.lines.iter().map(|(name, figures)| json!({
                "name": name, "figures": figures.iter().map(|figure| figure.to_json()).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
            "held": self.held.iter().map(|held| json!({
                "what": held.what, "found": held.found.to_json(), "reach": held.reach.to_string(),
                "reached": held.reach.kept(held.found.median),
            })).collect::<Vec<_>>(),
        })
    }

    fn markdown(&self) -> String {
        let mut text = format!("**{}**: {}\n\n", self.row, self.about);
        if !self.series.is_empty() {
            text.push_str("| contender | operations/s | CPU µs an operation | reads P50 / P99 / P99.9 µs | writes P50 / P99 / P99.9 µs | B read / written an operation | most resident |\n");
            text.push_str("|---|---|---|---|---|---|---|\n");
            self.series.iter().for_each(|series| text.push_str(&line(series)));
        }
        if !self.lines.is_empty() {
            let _ = writeln!(text, "\n| {} |\n|{}", self.columns.join(" | "), "---|".repeat(self.columns.len()));
        }
        for (name, figures) in &self.lines {
            let digits = |figure: &Spread| if figure.median < 10.0 { 3 } else { 0 };
            let figures: Vec<String> = figures.iter().map(|figure| figure.shown(digits(figure))).collect();
            let _ = writeln!(text, "| {name} | {} |", figures.join(" | "));
        }
        if !self.held.is_empty() {
            text.push_str("\n| figure | median (quartiles) | reach | |\n|---|---|---|---|\n");
        }
        for Held { what, found, reach } in &self.held {
            let mark = if reach.kept(found.median) { "" } else { "missed" };
            let _ = writeln!(text, "| {what} | {} | {reach} | {mark} |", found.shown(3));
        }
        text
    }
}

fn line(series: &Series) -> String {
    let latencies = series.latencies();
    let quantiles = |histogram: &_| {
        let [half, p99, p99_9] = [0.5, 0.99, 0.999].map(|quantile| quantile_us(histogram, quantile));
        if half == 0.0 { "–".to_owned() } else { format!("{half:.0} / {p99:.0} / {p99_9:.0}") }
    };
    let each = |bytes: u64, operations: u64| bytes as f64 / operations.max(1) as f64;
    let read = series.spread(|report| each(report.usage.read_bytes, report.latencies.operations()));
    let written = series.spread(|report| each(report.usage.written_bytes, report.latencies.operations()));
    let resident = series.reports.iter().map(|report| report.usage.resident_max_bytes).max().unwrap_or(0);
    format!(
        "| {} | {} | {} | {} | {} | {:.0} / {:.0} | {} MiB |\n",
        series.label,
        series.throughput().shown(0),
        series.cpu_us().shown(2),
        quantiles(&latencies.reads),
        quantiles(&latencies.writes),
        read.median,
        written.median,
        resident >> 20,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Mode;

    #[test]
    fn a_figure_that_misses_its_reach_is_said_to() {
        let mut outcome = Outcome::new(&Arguments::parse(&[], Mode::Measure).unwrap(), "row", "a test".into());
        let spread = Spread { low: 0.7, median: 0.8, high: 0.9 };
        outcome.hold("one", spread, Reach::AtLeast(0.9));
        outcome.hold("two", spread, Reach::AtMost(0.9));
        let text = outcome.markdown();
        assert!(text.contains("| one | 0.800 (0.700–0.900) | ≥ 0.9 | missed |"), "{text}");
        assert!(text.contains("| two | 0.800 (0.700–0.900) | ≤ 0.9 |  |"), "{text}");
        assert_eq!(outcome.json()["held"][0]["reached"], false);
    }
}

//! The outcome of a row: the entrants' turns, its own table of figures, figures with their aims, and pictures. It is printed as Markdown,
//! and written as JSON to the target folder, from which `cargo x bench keep` copies it into the tree.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::origin::origin;
use super::picture::Picture;
use super::series::Series;
use super::spread::Spread;
use super::stalls::{Stalls, Watch};
use super::tables;
use crate::Failure;
use crate::arguments::Arguments;
use crate::row::Missed;

pub struct Outcome {
    row: &'static str,
    about: String,
    /// The folder that it is written to.
    folder: PathBuf,
    entrants: Vec<Series>,
    /// Column headings; the first one is that of the lines' names.
    columns: Vec<String>,
    lines: Vec<(String, Vec<Spread>)>,
    held: Vec<Held>,
    pictures: Vec<Picture>,
    /// Runs since the beginning.
    watch: Option<Watch>,
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
    /// Reports that the row begins.
    pub fn new(arguments: &Arguments, row: &'static str, about: String) -> Outcome {
        println!("{row}: {about}");
        let (entrants, columns, lines, held, pictures) = Default::default();
        let folder = arguments.results();
        Outcome { row, about, folder, entrants, columns, lines, held, pictures, watch: Some(Watch::begin()) }
    }

    /// Sets the description, for rows that know it only after measuring.
    pub fn about(&mut self, about: String) {
        self.about = about;
    }

    pub fn series(&mut self, series: impl IntoIterator<Item = Series>) {
        self.entrants.extend(series);
    }

    /// Sets the headings of its own table.
    pub fn columns(&mut self, names: &[impl AsRef<str>]) {
        self.columns = names.iter().map(|name| name.as_ref().to_owned()).collect();
    }

    /// Adds a line to its own table: a name, and a figure for each other column.
    pub fn line(&mut self, name: impl Into<String>, figures: Vec<Spread>) {
        assert_eq!(figures.len() + 1, self.columns.len(), "a figure for each column");
        self.lines.push((name.into(), figures));
    }

    /// Checks a figure against its aim. `what` is `SUBJECT: WHAT` if several subjects have the same figure.
    pub fn hold(&mut self, what: impl Into<String>, found: Spread, reach: Reach) {
        self.held.push(Held { what: what.into(), found, reach });
    }

    /// Checks a figure that was measured once.
    pub fn hold_once(&mut self, what: impl Into<String>, found: f64, reach: Reach) {
        self.hold(what, Spread::once(found), reach);
    }

    pub fn report(&mut self, what: impl Into<String>, found: f64) {
        self.hold_once(what, found, Reach::Reported);
    }

    pub fn picture(&mut self, picture: Picture) {
        self.pictures.push(picture);
    }

    /// Prints the outcome, writes it to the target folder, and fails if an aim was missed.
    pub fn end(mut self) -> Result<(), Failure> {
        let stalls = self.watch.take().map_or_else(Stalls::default, Watch::end);
        let result = self.json(stalls);
        println!("\n{}", tables::all(&result));
        std::fs::create_dir_all(&self.folder)?;
        for picture in self.pictures.drain(..) {
            println!("drawn: {}", picture.save(&self.folder)?.display());
        }
        let path = self.folder.join(format!("{}.json", self.row));
        std::fs::write(&path, laid_out(&result))?;
        println!("left as {}; `cargo x bench keep {}` takes it into the tree", path.display(), self.row);
        let missed = self.held.iter().filter(|held| !held.reach.kept(held.found.median));
        let missed: Vec<&str> = missed.map(|held| held.what.as_str()).collect();
        if missed.is_empty() { Ok(()) } else { Err(Missed(missed.join("; ")).into()) }
    }

    fn json(&self, stalls: Stalls) -> Value {
        let mut result = origin(&self.folder);
        result["row"] = self.row.into();
        result["about"] = self.about.clone().into();
        result["stalls"] = stalls.to_json();
        result["entrants"] = self.entrants.iter().map(Series::to_json).collect();
        result["columns"] = json!(self.columns);
        let line = |(name, figures): &(String, Vec<Spread>)| json!({ "name": name, "figures": figures });
        result["lines"] = self.lines.iter().map(line).collect();
        let held = |held: &Held| {
            json!({
                "what": held.what, "found": held.found, "reach": held.reach.to_string(),
                "reached": held.reach.kept(held.found.median),
            })
        };
        result["held"] = self.held.iter().map(held).collect();
        result["pictures"] = json!(self.pictures);
        result
    }
}

/// JSON with a line for each member and each list element, so that a diff shows what changed.
pub fn laid_out(result: &Value) -> String {
    let mut members = Vec::new();
    for (name, member) in result.as_object().into_iter().flatten() {
        let shown = match member.as_array() {
            Some(elements) if !elements.is_empty() => {
                let elements: Vec<String> = elements.iter().map(|element| format!("  {element}")).collect();
                format!("[\n{}\n ]", elements.join(",\n"))
            }
            _ => member.to_string(),
        };
        members.push(format!(" \"{name}\": {shown}"));
    }
    format!("{{\n{}\n}}\n", members.join(",\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Mode;

    #[test]
    fn a_result_says_what_was_reached_and_what_was_not() {
        let mut outcome = Outcome::new(&Arguments::parse(&[], Mode::Measure).unwrap(), "row", "a test".into());
        let spread = Spread::of([0.7, 0.8, 0.9]);
        outcome.hold("one", spread.clone(), Reach::AtLeast(0.9));
        outcome.hold("two", spread, Reach::AtMost(0.9));
        let result = outcome.json(Stalls::default());
        assert_eq!((&result["held"][0]["reached"], &result["held"][1]["reached"]), (&json!(false), &json!(true)));
        assert_eq!(serde_json::from_str::<Value>(&laid_out(&result)).unwrap(), result);
        assert!(laid_out(&result).contains("\n  {\"found\":{"), "{}", laid_out(&result));
    }
}

//! `cargo x bench keep ROW` takes a result from the target folder into docs/figures, and `cargo x bench report` makes docs/BENCHMARKS.md
//! and its pictures of all that are kept there. In the document each stands between `<!-- made by cargo x bench report: NAME -->` and
//! `<!-- end -->`, where the file is docs/figures/NAME.json. All else there is written by hand.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::picture::Picture;
use super::tables;
use crate::arguments::Arguments;
use crate::{Failure, workspace};

const END: &str = "<!-- end -->";
/// More would make the tree heavy.
const KEPT_BYTES_MAX: u64 = 60 << 10;

fn begin(name: &str) -> String {
    format!("<!-- made by cargo x bench report: {name} -->\n")
}

fn figures() -> PathBuf {
    workspace::root().join("docs/figures")
}

/// A row that is kept in several shapes has a name for each, by `--as`.
pub fn keep(row: &str, arguments: &Arguments) -> Result<(), Failure> {
    let name = arguments.text("as").unwrap_or(row).to_owned();
    arguments.finish()?;
    let from = arguments.results().join(format!("{row}.json"));
    let text =
        std::fs::read_to_string(&from).map_err(|error| format!("{}: {error}: run the row first", from.display()))?;
    if text.len() as u64 > KEPT_BYTES_MAX {
        return Err(format!("{} has more than {KEPT_BYTES_MAX} bytes: take fewer --rounds", from.display()).into());
    }
    serde_json::from_str::<Value>(&text).map_err(|error| format!("{}: {error}", from.display()))?;
    let to = figures().join(format!("{name}.json"));
    std::fs::create_dir_all(figures())?;
    std::fs::write(&to, text)?;
    println!("kept as {}; `cargo x bench report` makes its table", to.display());
    Ok(())
}

pub fn write(arguments: &Arguments) -> Result<(), Failure> {
    arguments.finish()?;
    for (path, content) in made()? {
        if std::fs::read_to_string(&path).is_ok_and(|there| there == content) {
            continue;
        }
        std::fs::write(&path, content)?;
        println!("written: {}", path.display());
    }
    Ok(())
}

/// The document and the pictures as the kept results make them, by their paths.
fn made() -> Result<Vec<(PathBuf, String)>, Failure> {
    let document = workspace::root().join("docs/BENCHMARKS.md");
    let mut text = std::fs::read_to_string(&document)?;
    let mut found = Vec::new();
    let kept = kept(&figures())?;
    for (name, result) in &kept {
        text = filled(&text, name, &tables::document(result))?;
        for picture in result["pictures"].as_array().into_iter().flatten() {
            let picture = Picture::deserialize(picture)?;
            found.push((workspace::root().join("docs").join(picture.file()), picture.svg()));
        }
    }
    if let Some(stranger) = marked(&text).find(|marked| !kept.iter().any(|(name, _)| name == marked)) {
        return Err(format!("BENCHMARKS.md has a place for {stranger}, and docs/figures has no {stranger}.json").into());
    }
    found.push((document, text));
    Ok(found)
}

/// All results of a folder, by name.
fn kept(folder: &Path) -> Result<Vec<(String, Value)>, Failure> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut kept = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let result = serde_json::from_str(&std::fs::read_to_string(&path)?);
        kept.push((name, result.map_err(|error| format!("{}: {error}", path.display()))?));
    }
    kept.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(kept)
}

/// The names of the places of a text.
fn marked(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix(begin("").trim_end_matches(" -->\n"))?.strip_suffix(" -->"))
}

/// The text with the place of this name filled.
fn filled(text: &str, name: &str, content: &str) -> Result<String, Failure> {
    filled_after(text, &begin(name), content)
}

/// The text with all replaced that stands between this line and the next [`END`].
pub fn filled_after(text: &str, begin: &str, content: &str) -> Result<String, Failure> {
    let line = begin.trim_end();
    let (before, rest) = text
        .split_once(begin)
        .ok_or_else(|| format!("the document has no place for this: put a line {line} and one {END}"))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| format!("the place after {line} has no {END}"))?;
    Ok(format!("{before}{begin}{content}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_filled_and_all_else_is_left() {
        let text = format!("a\n{}old\n{END}\nb {END}", begin("x"));
        assert_eq!(filled(&text, "x", "new\n").unwrap(), format!("a\n{}new\n{END}\nb {END}", begin("x")));
        assert!(filled(&text, "y", "").is_err());
        assert_eq!(marked(&text).collect::<Vec<_>>(), ["x"]);
    }

    /// If it fails: `cargo x bench report`.
    #[test]
    fn the_document_and_its_pictures_are_what_the_kept_results_make() {
        for (path, content) in made().unwrap() {
            let there = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(there == content, "{} is not what docs/figures makes: cargo x bench report", path.display());
        }
    }
}

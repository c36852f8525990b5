//! `cargo x test-times`: the time of each part of the last `make test`. xtask/timed writes a line for each part; here they become a table,
//! which is printed, or put into a document between its marks (`--into docs/TESTING.md`).

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::arguments::Arguments;
use crate::results::origin::origin;
use crate::results::report::filled_after;
use crate::{Failure, workspace};

const BEGIN: &str = "<!-- made by cargo x test-times -->\n";

/// The time of one part, in seconds. Runs with the same name are added.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct PartTime {
    wall_s: f64,
    cpu_s: f64,
}

/// The parts by name, and the time from the start of the first to the end of the last.
#[derive(Default, Debug, PartialEq)]
struct RunTimes {
    parts: BTreeMap<String, PartTime>,
    wall_s: f64,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let document = arguments.text("into").map(|path| workspace::root().join(path));
    arguments.finish()?;
    let path = workspace::target().join("test-times");
    let lines = std::fs::read_to_string(&path)
        .map_err(|error| format!("{}: {error}: `make test` writes it", path.display()))?;
    let table = table(&parse(&lines)?);
    let Some(document) = document else {
        print!("{table}");
        return Ok(());
    };
    let text = std::fs::read_to_string(&document)?;
    std::fs::write(&document, filled_after(&text, BEGIN, &format!("{}\n{table}", caption()))?)?;
    println!("written: {}", document.display());
    Ok(())
}

fn parse(lines: &str) -> Result<RunTimes, Failure> {
    let mut run = RunTimes::default();
    let (mut begun_s, mut ended_s) = (f64::INFINITY, 0.0_f64);
    for line in lines.lines() {
        let wrong = || format!("`{line}` is no line of xtask/timed: PART BEGUN WALL USER KERNEL");
        let (name, figures) = line.split_once(' ').ok_or_else(wrong)?;
        let figures: Result<Vec<f64>, _> = figures.split(' ').map(str::parse).collect();
        let [begins_s, wall_s, user_s, kernel_s] = figures.map_err(|_| wrong())?[..] else {
            return Err(wrong().into());
        };
        let part = run.parts.entry(name.to_owned()).or_default();
        part.wall_s += wall_s;
        part.cpu_s += user_s + kernel_s;
        begun_s = begun_s.min(begins_s);
        ended_s = ended_s.max(begins_s + wall_s);
    }
    run.wall_s = (ended_s - begun_s).max(0.0);
    Ok(run)
}

/// As Markdown, the longest part first.
fn table(run: &RunTimes) -> String {
    let mut parts: Vec<(&String, &PartTime)> = run.parts.iter().collect();
    parts.sort_by(|one, other| other.1.wall_s.total_cmp(&one.1.wall_s));
    let mut text = "| part of `make test` | s by the clock | s of CPU |\n|---|---:|---:|\n".to_owned();
    for (name, part) in parts {
        let _ = writeln!(text, "| {name} | {:.0} | {:.0} |", part.wall_s, part.cpu_s);
    }
    let cpu_s: f64 = run.parts.values().map(|part| part.cpu_s).sum();
    let _ = writeln!(text, "| all, partly side by side | {:.0} | {cpu_s:.0} |", run.wall_s);
    text
}

/// The caption: date, commit and machine.
fn caption() -> String {
    let origin = origin(&workspace::target());
    let text = |name: &str| origin[name].as_str().unwrap_or("unknown").to_owned();
    let (date, commit) = (text("date"), text("commit"));
    let machine = &origin["machine"];
    format!(
        "{}, commit {}, {} × {}:\n",
        date.split('T').next().unwrap_or_default(),
        commit.get(..8).unwrap_or(&commit),
        machine["processors"],
        machine["model"].as_str().unwrap_or("unknown"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_ran_side_by_side_and_twice_are_added_up() {
        let run =
            parse("build 100 60.5 90.0 10.0\nlint 160 10 5 1\nkill 170 20 1 1\nnbd 171 25 2 2\nbuild 180 1 0.5 0.5\n")
                .unwrap();
        assert_eq!(run.wall_s, 96.0);
        assert_eq!(run.parts["build"], PartTime { wall_s: 61.5, cpu_s: 101.0 });
        let table = table(&run);
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(rows[0], "| build | 62 | 101 |");
        assert_eq!(rows[4], "| all, partly side by side | 96 | 113 |");
    }

    #[test]
    fn a_line_that_is_cut_is_named() {
        let failure = parse("build 100 60.5\n").unwrap_err().to_string();
        assert!(failure.contains("`build 100 60.5`"), "{failure}");
    }

    #[test]
    fn the_document_that_holds_the_table_has_a_place_for_it() {
        let document = std::fs::read_to_string(workspace::root().join("docs/TESTING.md")).unwrap();
        let filled = filled_after(&document, BEGIN, "TABLE\n").unwrap();
        assert!(filled.contains(&format!("{BEGIN}TABLE\n<!-- end -->")));
    }
}

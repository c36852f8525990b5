//! Markdown tables of a result's JSON (see `outcome`): figures with their aims, the row's own table, and the contenders' results.

use std::fmt::Write;

use serde::Deserialize;
use serde_json::Value;

use super::spread::{Spread, shown};

/// The most lines of a document's table of contenders beside pictures, which would disappear among more.
const CONTENDERS_BESIDE_PICTURES_MAX: usize = 24;

/// All tables of a result.
pub fn all(result: &Value) -> String {
    let held: Vec<&Value> = list(&result["held"]);
    format!("{}{}{}{}\n", head(result), held_table(&held), own_table(result), entrants_table(result))
}

/// The tables for docs/BENCHMARKS.md: if any figure has an aim, only the figures with aims; and contenders only if they are few, or shown
/// nowhere else.
pub fn document(result: &Value) -> String {
    let held = list(&result["held"]);
    let aimed: Vec<&Value> = held.iter().copied().filter(|held| has_aim(held)).collect();
    let held = if aimed.is_empty() { held } else { aimed };
    let are_drawn = !list(&result["pictures"]).is_empty();
    let entrants = match are_drawn && list(&result["entrants"]).len() > CONTENDERS_BESIDE_PICTURES_MAX {
        true => String::new(),
        false => entrants_table(result),
    };
    format!("{}{}{}{entrants}", head(result), held_table(&held), own_table(result))
}

fn list(value: &Value) -> Vec<&Value> {
    value.as_array().into_iter().flatten().collect()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or("unknown")
}

fn has_aim(held: &Value) -> bool {
    text(held, "reach") != "reported"
}

/// The heading: subject, command, time and machine of the measurement.
fn head(result: &Value) -> String {
    let machine = &result["machine"];
    let commit = text(result, "commit");
    let changes = if result["tree_has_changes"].as_bool() == Some(true) { " with changes" } else { "" };
    let mut head = format!("*{}*: {}.\n", text(result, "row"), text(result, "about"));
    let date = text(result, "date").split('T').next().unwrap_or_default();
    let _ = write!(head, "`{}`, {date}, commit {}{changes}", text(result, "command"), &commit[..commit.len().min(7)]);
    let [model, kernel, file_system] = ["model", "kernel", "file_system"].map(|name| text(machine, name));
    let memory_gib = machine["memory_bytes"].as_f64().unwrap_or_default() / f64::from(1 << 30);
    let _ = write!(head, "; {} × {model}, {memory_gib:.0} GiB, Linux {kernel}, {file_system}.", machine["processors"]);
    let stalls = &result["stalls"];
    if let (Some(total), Some(watched)) = (stalls["total_s"].as_f64(), stalls["watched_s"].as_f64()) {
        let longest = stalls["longest_ms"].as_f64().unwrap_or_default();
        let _ = write!(head, " The machine stood still {total:.1} s of {watched:.0}, {longest:.0} ms at most.");
    }
    head + "\n"
}

/// A figure, or the reason why it cannot be read.
fn cell(value: &Value) -> String {
    Spread::deserialize(value).map_or_else(|why| why.to_string(), |spread| spread.shown())
}

fn held_cell(held: &Value) -> String {
    let found = cell(&held["found"]);
    let aim = text(held, "reach");
    match (has_aim(held), held["reached"].as_bool()) {
        (false, _) => found,
        (true, Some(true)) => format!("{found}; aim {aim}"),
        (true, _) => format!("{found}; aim {aim}, **missed**"),
    }
}

/// A line for each subject if the figures are named `SUBJECT: WHAT`; otherwise a line for each figure.
fn held_table(held: &[&Value]) -> String {
    if held.is_empty() {
        return String::new();
    }
    let parted: Vec<(&str, &str, &Value)> = held
        .iter()
        .map(|held| {
            let (subject, what) = text(held, "what").rsplit_once(": ").unwrap_or(("", text(held, "what")));
            (subject, what, *held)
        })
        .collect();
    let (subjects, whats) = (distinct(parted.iter().map(|part| part.0)), distinct(parted.iter().map(|part| part.1)));
    if subjects.len() < 2 || whats.len() < 2 || 2 * held.len() < subjects.len() * whats.len() {
        let lines = held.iter().map(|held| vec![text(held, "what").to_owned(), held_cell(held)]);
        return table(&["figure", "measured"], lines);
    }
    let lines = subjects.iter().map(|subject| {
        let of = |what: &&str| parted.iter().find(|part| part.0 == *subject && part.1 == *what);
        let cells = whats.iter().map(|what| of(what).map_or(String::new(), |part| held_cell(part.2)));
        std::iter::once((*subject).to_owned()).chain(cells).collect()
    });
    table(&[&[""][..], &whats].concat(), lines)
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    names.for_each(|name| {
        if !found.contains(&name) {
            found.push(name);
        }
    });
    found
}

fn own_table(result: &Value) -> String {
    let columns: Vec<&str> = list(&result["columns"]).into_iter().filter_map(Value::as_str).collect();
    let lines = list(&result["lines"]).into_iter().map(|line| {
        let figures = list(&line["figures"]).into_iter().map(cell);
        std::iter::once(text(line, "name").to_owned()).chain(figures).collect()
    });
    table(&columns, lines)
}

fn entrants_table(result: &Value) -> String {
    let quantiles = |value: &Value| {
        let at = ["p50_us", "p99_us", "p99_9_us"].map(|name| value[name].as_f64().unwrap_or_default());
        if at == [0.0; 3] { String::new() } else { at.map(shown).join(" / ") }
    };
    let lines = list(&result["entrants"]).into_iter().map(|entrant| {
        let number = |name: &str| entrant[name].as_f64().map_or(String::new(), shown);
        vec![
            text(entrant, "label").to_owned(),
            cell(&entrant["operations_per_second"]),
            cell(&entrant["cpu_us_per_operation"]),
            quantiles(&entrant["reads"]),
            quantiles(&entrant["writes"]),
            format!("{} / {}", number("read_bytes_per_operation"), number("written_bytes_per_operation")),
            number("resident_max_mib"),
        ]
    });
    let columns = [
        "contender",
        "operations/s",
        "CPU µs an operation",
        "reads P50 / P99 / P99.9 µs",
        "writes P50 / P99 / P99.9 µs",
        "B read / written an operation",
        "MiB resident at most",
    ];
    table(&columns, lines)
}

/// A table, with an empty line before it, and without its empty columns. Nothing if there are no lines.
fn table(columns: &[&str], lines: impl Iterator<Item = Vec<String>>) -> String {
    let lines: Vec<Vec<String>> = lines.collect();
    if lines.is_empty() {
        return String::new();
    }
    let is_filled = |at: &usize| lines.iter().any(|cells| !cells[*at].is_empty());
    let filled: Vec<usize> = (0..columns.len()).filter(is_filled).collect();
    let line = |cell: &dyn Fn(usize) -> String| {
        let cells: Vec<String> = filled.iter().map(|at| cell(*at)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rows: String = lines.iter().map(|cells| line(&|at| cells[at].clone())).collect();
    format!("\n{}|{}\n{rows}", line(&|at| columns[at].to_owned()), "---|".repeat(filled.len()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn held(what: &str, reach: &str, reached: bool) -> Value {
        json!({ "what": what, "found": Spread::of([1.0, 2.0, 3.0]), "reach": reach, "reached": reached })
    }

    #[test]
    fn a_figure_that_misses_its_aim_is_said_to() {
        let result =
            json!({ "held": [held("one", "≥ 5", false), held("two", "≤ 5", true), held("three", "reported", true)] });
        assert!(all(&result).contains("| one | 2.00 (1.00–3.00); aim ≥ 5, **missed** |"), "{}", all(&result));
        assert!(all(&result).contains("| three | 2.00 (1.00–3.00) |"));
        assert!(!document(&result).contains("three"));
    }

    #[test]
    fn what_is_said_of_several_subjects_has_a_line_a_subject() {
        let result = json!({ "held": [
            held("A: speed", "reported", true), held("A: CPU", "reported", true), held("B: speed", "reported", true),
        ] });
        let text = document(&result);
        assert!(text.contains("|  | speed | CPU |\n|---|---|---|\n| A | 2.00"), "{text}");
        assert!(text.contains("| B | 2.00 (1.00–3.00) |  |"), "{text}");
    }

    #[test]
    fn many_contenders_are_left_to_their_picture_and_empty_columns_out() {
        let entrant = json!({ "label": "a store", "reads": { "p50_us": 7.0 } });
        let mut result = json!({ "entrants": vec![entrant; CONTENDERS_BESIDE_PICTURES_MAX + 1] });
        assert!(document(&result).contains("| a store |"));
        assert!(!document(&result).contains("writes P50"), "{}", document(&result));
        result["pictures"] = json!([{}]);
        assert!(!document(&result).contains("a store"));
        assert!(all(&result).contains("| a store |"));
    }
}

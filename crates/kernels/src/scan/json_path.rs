//! A path in JSON.
//!
//! ```text
//! path:  $ step …      step: .name | ["any name"] | [number]
//! ```
//! [`super::json_scanner`] follows it.

use std::fmt::{self, Write};

pub const JSON_STEPS_MAX: usize = 8;
/// The longest path as text.
pub const JSON_PATH_BYTES_MAX: usize = 255;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JsonStep {
    Member(Box<str>),
    Element(u32),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JsonPath {
    pub(super) steps: Vec<JsonStep>,
}

/// The reason that a text is no path, and the byte that shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JsonPathError {
    pub at: usize,
    pub problem: &'static str,
}

impl JsonPath {
    pub fn parse(text: &str) -> Result<JsonPath, JsonPathError> {
        let error = |at: usize, problem| JsonPathError { at, problem };
        if text.len() > JSON_PATH_BYTES_MAX {
            return Err(error(0, "a path has at most 255 bytes"));
        }
        let mut rest = text.strip_prefix('$').ok_or(error(0, "a path begins with $"))?;
        let mut steps = Vec::new();
        while !rest.is_empty() {
            let at = text.len() - rest.len();
            if steps.len() == JSON_STEPS_MAX {
                return Err(error(at, "a path has at most 8 steps"));
            }
            let (step, after) = parse_step(rest).map_err(|problem| error(at, problem))?;
            steps.push(step);
            rest = after;
        }
        Ok(JsonPath { steps })
    }
}

fn parse_step(text: &str) -> Result<(JsonStep, &str), &'static str> {
    if let Some(rest) = text.strip_prefix('.') {
        let end = rest.find(|c: char| !is_plain(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        if name.is_empty() {
            return Err("a name follows the point; write an odd one as [\"name\"]");
        }
        return Ok((JsonStep::Member(name.into()), after));
    }
    let inner = text.strip_prefix('[').ok_or("a step is .name, [\"name\"] or [number]")?;
    if let Some(quoted) = inner.strip_prefix('"') {
        let (name, after) = quoted.split_once("\"]").ok_or("the name ends with \"]")?;
        // There are no escapes, so a name with a quote or a backslash cannot be written.
        if name.contains(['"', '\\']) {
            return Err("a name has no quotes and backslashes in it");
        }
        return Ok((JsonStep::Member(name.into()), after));
    }
    let (number, after) = inner.split_once(']').ok_or("the number ends with ]")?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let is_shortest = number == "0" || !number.starts_with('0');
    let place = number.parse().ok().filter(|_| is_number && is_shortest);
    Ok((JsonStep::Element(place.ok_or("between [ and ] stands a number from 0 on")?), after))
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('$')?;
        self.steps.iter().try_for_each(|step| match step {
            JsonStep::Member(name) if !name.is_empty() && name.chars().all(is_plain) => write!(f, ".{name}"),
            JsonStep::Member(name) => write!(f, "[\"{name}\"]"),
            JsonStep::Element(place) => write!(f, "[{place}]"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_written_as_it_is_read_or_says_where_it_is_wrong() {
        for path in ["$", "$.a", "$.a-b_c[0].d", "$[\"a b\"][12]", "$[\"\"]"] {
            assert_eq!(JsonPath::parse(path).unwrap().to_string(), path);
        }
        for (path, at) in [
            ("a", 0),
            ("$a", 1),
            ("$.", 1),
            ("$.a.", 3),
            ("$[x]", 1),
            ("$[01]", 1),
            ("$[1", 1),
            ("$[\"a]", 1),
            ("$.a[-1]", 3),
        ] {
            assert_eq!(JsonPath::parse(path).unwrap_err().at, at, "{path}");
        }
        assert!(JsonPath::parse(&"$.a".replace(".a", &".a".repeat(9))).is_err());
        assert!(JsonPath::parse(&format!("$.{}", "a".repeat(300))).is_err());
    }
}

//! `--name value` pairs. An option that no command asked for is an error, so that a typing slip cannot run the
//! default in silence: every getter marks its name, `finish` looks for what was left.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::Failure;

pub struct Arguments {
    values: BTreeMap<String, String>,
    asked: RefCell<BTreeSet<String>>,
}

impl Arguments {
    pub fn parse(words: &[String]) -> Result<Arguments, Failure> {
        let mut values = BTreeMap::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").ok_or_else(|| format!("expected --option, found {word}"))?;
            let value = words.next().ok_or_else(|| format!("--{name} needs a value"))?;
            if values.insert(name.to_owned(), value.clone()).is_some() {
                return Err(format!("--{name} is given twice").into());
            }
        }
        Ok(Arguments { values, asked: RefCell::default() })
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.asked.borrow_mut().insert(name.to_owned());
        self.values.get(name).map(String::as_str)
    }

    pub fn number(&self, name: &str, default: u64) -> Result<u64, Failure> {
        match self.text(name) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| format!("--{name} takes a whole number, not {text}").into()),
        }
    }

    /// Bytes: a whole number, alone or with KiB, MiB or GiB behind it.
    pub fn size(&self, name: &str, default: u64) -> Result<u64, Failure> {
        match self.text(name) {
            None => Ok(default),
            Some(text) => parse_size(text)
                .ok_or_else(|| format!("--{name} takes bytes, such as 4096, 64KiB, 256MiB or 4GiB, not {text}").into()),
        }
    }

    pub fn server(&self) -> Option<PathBuf> {
        self.text("server").map(PathBuf::from)
    }

    pub fn finish(&self) -> Result<(), Failure> {
        let asked = self.asked.borrow();
        match self.values.keys().find(|name| !asked.contains(*name)) {
            None => Ok(()),
            Some(name) => {
                let known: Vec<String> = asked.iter().map(|name| format!("--{name}")).collect();
                Err(format!("there is no option --{name} here; there are {}", known.join(", ")).into())
            }
        }
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit: u64 = match &text[digits.len()..] {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn sizes_take_binary_units_only() {
        assert_eq!(parse_size("4096"), Some(4096));
        assert_eq!(parse_size("256MiB"), Some(256 << 20));
        assert_eq!(parse_size("3GB"), None);
        assert_eq!(parse_size("GiB"), None);
        assert_eq!(parse_size("99999999999GiB"), None);
    }

    #[test]
    fn an_option_nobody_asked_for_is_refused() {
        let arguments = Arguments::parse(&words("--cycles 3 --cylces 4")).unwrap();
        assert_eq!(arguments.number("cycles", 30).unwrap(), 3);
        assert!(arguments.finish().unwrap_err().to_string().contains("--cylces"));
    }

    #[test]
    fn a_value_is_never_taken_for_an_option() {
        assert!(Arguments::parse(&words("30")).is_err());
        assert!(Arguments::parse(&words("--cycles")).is_err());
        assert!(Arguments::parse(&words("--seed 1 --seed 2")).is_err());
    }
}

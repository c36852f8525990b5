//! The licences of the binary's parts: that `deny.toml` allows each, and their texts in one file.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::parts::Part;
use crate::{Failure, workspace};

/// Linked with as a library, so its licence leaves ours as it is.
const LINKED_LIBRARY: (&str, &str) = ("glibc", "LGPL-2.1-or-later");

/// Refuses a part whose licence is not allowed.
pub fn check(parts: &[Part]) -> Result<(), Failure> {
    let allowed = allowed(&std::fs::read_to_string(workspace::root().join("deny.toml"))?)?;
    for part in parts.iter().filter(|part| (part.name.as_str(), part.licence.as_str()) != LINKED_LIBRARY) {
        if !is_allowed(&part.licence, &allowed) {
            let (name, licence) = (&part.name, &part.licence);
            return Err(format!(
                "the binary contains {name} under {licence}, which deny.toml does not allow: take another crate, or allow it there"
            )
            .into());
        }
    }
    Ok(())
}

/// The list `allow` of deny.toml.
fn allowed(deny: &str) -> Result<Vec<String>, Failure> {
    let line = deny.lines().find_map(|line| line.strip_prefix("allow = ["));
    let line = line.ok_or("deny.toml has no line that begins with `allow = [`")?;
    Ok(line.split('"').skip(1).step_by(2).map(str::to_owned).collect())
}

/// Whether an expression of SPDX is satisfied by these licences. AND binds closer than OR; crates use no parentheses around OR, and where
/// one did, the expression would be refused here rather than taken.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let expression = expression.replace(" / ", " OR ").replace('/', " OR ");
    let each_is = |terms: &str| terms.split(" AND ").all(|name| allowed.iter().any(|licence| licence == name.trim()));
    expression.split(" OR ").any(each_is)
}

/// All parts with their licences, and each text once.
pub fn texts(parts: &[Part]) -> Result<String, Failure> {
    let mut out = String::from(
        "What the binary tapetum contains besides its own sources, under which licences; the texts follow. Parts of which\n\
         several licences may be chosen are taken under those of MIT, BSD, ISC or Apache-2.0. A static binary contains the\n\
         GNU C library, under the LGPL, whose text Debian has in /usr/share/common-licenses; with the sources of Tapetum\n\
         (cargo build) the binary is linked with another version of it.\n\n",
    );
    let mut by_text: BTreeMap<String, Vec<&Part>> = BTreeMap::new();
    for part in parts.iter().filter(|part| !part.is_ours) {
        // Writing to a string cannot fail.
        let _ = write!(out, "{} {}: {}", part.name, part.version, part.licence);
        if !part.authors.is_empty() {
            let _ = write!(out, ", by {}", part.authors.join(", "));
        }
        let _ = writeln!(out, "{}", part.home.as_ref().map_or(String::new(), |home| format!(", {home}")));
        for path in &part.texts {
            let text = String::from_utf8_lossy(&std::fs::read(path)?).replace('\r', "");
            by_text.entry(text.trim_end().trim_start_matches('\n').to_owned()).or_default().push(part);
        }
    }
    let mut by_text: Vec<(String, Vec<&Part>)> = by_text.into_iter().collect();
    by_text.sort_by(|(_, one), (_, other)| one[0].name.cmp(&other[0].name));
    for (text, parts) in by_text {
        let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        let _ = write!(out, "\n{}\nOf {}:\n\n{text}\n", "=".repeat(80), names.join(", "));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::super::parts;
    use super::*;

    #[test]
    fn one_choice_must_be_allowed_and_all_of_it() {
        let allowed = allowed("[licenses]\nallow = [\"MIT\", \"ISC\"]\n").unwrap();
        for (expression, is) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("Unlicense/MIT", true),
            ("Apache-2.0 / MIT", true),
            ("MIT AND GPL-3.0", false),
            ("MIT AND ISC", true),
            ("GPL-3.0 OR MIT AND ISC", true),
            ("MIT AND (ISC OR GPL-3.0)", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(expression, &allowed), is, "{expression}");
        }
    }

    #[test]
    fn every_part_is_allowed_and_the_texts_name_it() {
        let parts = parts::all(parts::WHEEL).unwrap();
        check(&parts).unwrap();
        let texts = texts(&parts).unwrap();
        for name in ["libzstd", "ring", "libjpeg-turbo", "glibc", "pyo3"] {
            assert!(texts.contains(&format!("\n{name} ")), "{name}");
        }
        assert!(texts.contains("Independent JPEG Group") && texts.contains("Permission is hereby granted"));
    }
}

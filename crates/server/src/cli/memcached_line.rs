//! Explains a command line of `tapetum serve` that has options of memcached. Pure.

use std::ffi::OsString;
use std::fmt::Write as _;

use super::memcached_flags::{Flag, Given, Ours, find, find_extended};

/// A word of the command line, with its value if it has one.
enum Part<'a> {
    Theirs { flag: &'static Flag, typed: String, value: &'a str },
    Other(&'a str),
}

/// Whether memcached has an option of this name, which is typed as clap says it.
pub fn has(typed: &str) -> bool {
    find(typed).is_some_and(|flag| !matches!(flag.ours, Ours::Same))
}

/// The words behind `serve`, memcached's options apart from others.
fn parts<'a>(words: &[&'a str]) -> Vec<Part<'a>> {
    let (mut parts, mut rest) = (Vec::new(), words.iter().copied());
    while let Some(word) = rest.next() {
        let (name, attached) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        if word.starts_with("--") {
            match find(name) {
                Some(flag) => {
                    let value = attached.or_else(|| if flag.takes_value { rest.next() } else { None });
                    parts.push(Part::Theirs { flag, typed: name.into(), value: value.unwrap_or_default() });
                }
                None => parts.push(Part::Other(word)),
            }
            continue;
        }
        let Some(mut letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
            parts.push(Part::Other(word));
            continue;
        };
        // As getopt has it: `-vm64` is `-v -m 64`.
        while let Some(letter) = letters.chars().next() {
            letters = &letters[letter.len_utf8()..];
            let typed = format!("-{letter}");
            let Some(flag) = find(&typed) else {
                parts.push(Part::Other(word));
                break;
            };
            let value = match (flag.takes_value, letters.is_empty()) {
                (false, _) => "",
                (true, true) => rest.next().unwrap_or_default(),
                (true, false) => std::mem::take(&mut letters),
            };
            parts.push(Part::Theirs { flag, typed, value });
        }
    }
    parts
}

/// The words behind `-o`.
fn pairs(value: &str) -> impl Iterator<Item = (&str, &str)> {
    value.split(',').map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

fn given<'a>(parts: &[Part<'a>]) -> Given<'a> {
    let mut given = Given::default();
    for part in parts {
        let Part::Theirs { flag, value, .. } = *part else { continue };
        match flag.names[0] {
            "-l" => given.listen = Some(value),
            "-p" => given.port = Some(value),
            "-o" => given.extended.extend(pairs(value)),
            _ => {}
        }
    }
    given
}

/// An option of the line, with its counterpart.
struct Translation {
    typed: String,
    /// Words of ours, if any are needed.
    ours: Option<String>,
    /// Those words, or why there are none.
    told: String,
}

fn translate(typed: String, flag: Option<&Flag>, value: &str, given: &Given<'_>) -> Translation {
    let without = |typed, told: String| Translation { typed, ours: None, told };
    let ours = match flag.map(|flag| &flag.ours) {
        None => return without(typed, "none: memcached's documents name no such option".into()),
        Some(Ours::Nothing(why)) => return without(typed, format!("none: {why}")),
        Some(Ours::Same) => flag.map(|flag| flag.names[0].to_owned()),
        Some(Ours::Words(words)) => words(value, given),
    };
    match ours {
        None => without(typed, format!("none for {value:?}: `tapetum help serve` says what its options take")),
        Some(ours) if ours.is_empty() => without(typed, "nothing is needed for it".into()),
        Some(ours) => Translation { typed, told: ours.clone(), ours: Some(ours) },
    }
}

fn translate_all(parts: &[Part<'_>], given: &Given<'_>) -> Vec<Translation> {
    let mut translations = Vec::new();
    for part in parts {
        match part {
            Part::Other(_) => {}
            Part::Theirs { flag, value, .. } if flag.names[0] == "-o" => {
                translations.extend(pairs(value).map(|(name, value)| {
                    let typed = if value.is_empty() { format!("-o {name}") } else { format!("-o {name}={value}") };
                    translate(typed, find_extended(name), value, given)
                }));
            }
            Part::Theirs { flag, typed, value } => {
                let shown = if value.is_empty() { typed.clone() } else { format!("{typed} {value}") };
                translations.push(translate(shown, Some(flag), value, given));
            }
        }
    }
    translations
}

/// The message for a command line that has memcached's option `typed`.
pub fn explain(typed: &str, words: &[OsString]) -> String {
    let words: Vec<&str> = words.iter().skip(1).filter_map(|word| word.to_str()).collect();
    let words = words.strip_prefix(&["serve"]).unwrap_or(&words);
    let parts = parts(words);
    let translations = translate_all(&parts, &given(&parts));
    let width = translations.iter().map(|one| one.typed.chars().count()).max().unwrap_or(0);
    let mut message = format!("unexpected argument '{typed}' found: it is memcached's\n\n");
    for Translation { typed, told, .. } in &translations {
        // Writing to a string cannot fail.
        let _ = writeln!(message, "  {typed:width$}  {told}");
    }
    let others = parts.iter().filter_map(|part| if let Part::Other(word) = part { Some(*word) } else { None });
    let ours = translations.iter().filter_map(|one| one.ours.as_deref());
    let line: Vec<&str> = ["tapetum serve"].into_iter().chain(others).chain(ours).collect();
    let _ = write!(message, "\nThe nearest to it is: {}\n\nFor more information, try '--help'.\n", line.join(" "));
    message
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::arguments::Cli;
    use crate::cli::memcached_flags::{EXTENDED, FLAGS};

    fn explained(line: &str) -> String {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        explain("-m", &words)
    }

    /// The line of ours that is told, which must be understood.
    #[track_caller]
    fn ours(line: &str) -> String {
        let told = explained(line);
        let nearest = told.lines().find_map(|line| line.strip_prefix("The nearest to it is: ")).unwrap().to_owned();
        let parsed = Cli::try_parse_from(nearest.split_whitespace());
        assert!(parsed.is_ok(), "{nearest}: {}", parsed.err().unwrap());
        nearest.strip_prefix("tapetum serve").unwrap().trim_start().to_owned()
    }

    #[test]
    fn a_line_of_memcached_becomes_one_of_ours() {
        for (line, nearest) in [
            ("-m 64", "--memory 64MiB"),
            ("-m 1024 -p 11212 -c 1024", "--memory 1GiB --memcached 127.0.0.1:11212 --connections 1024"),
            ("-dm64", "--memory 64MiB"),
            ("-vvp11212", "-v -v --memcached 127.0.0.1:11212"),
            ("--memory-limit=100 --port 1", "--memory 100MiB --memcached 127.0.0.1:1"),
            ("-l 0.0.0.0 -p 5", "--memcached 0.0.0.0:5"),
            (
                "-l 127.0.0.1:7,::1,notls:10.0.0.1",
                "--memcached 127.0.0.1:7 --memcached [::1]:11211 --memcached notls:10.0.0.1:11211",
            ),
            ("-s /run/m.sock -a 700", "--memcached unix:/run/m.sock"),
            ("-U 0 -t 4 -F", "--threads 4 --no-flush-all"),
            ("-U 11211 -I 8m -b 99", "--udp 127.0.0.1:11211 --item-size 8MiB --backlog 99"),
            (
                "-o ext_path=/data/f:64G,ext_page_size=8,ext_threads=2",
                "--drive /data/f --capacity 64GiB --write-buffer 8MiB --drive-threads 2",
            ),
            (
                "-Z -o ssl_chain_cert=c.pem,ssl_key=k.pem,ssl_min_version=3",
                "--ssl-chain-cert c.pem --ssl-key k.pem --ssl-min-version 3",
            ),
            ("-o idle_timeout=60,no_lru_crawler --data d", "--data d --idle-timeout 60"),
        ] {
            assert_eq!(ours(&format!("tapetum serve {line}")), nearest, "{line}");
        }
        assert_eq!(ours("tapetum -m 64"), "--memory 64MiB");
    }

    #[test]
    fn an_option_without_a_counterpart_says_why() {
        for (line, told) in [
            ("-d", "-d  none: systemd keeps it running"),
            ("-u nobody", "-u nobody  none: start it as the user"),
            ("-m lots", "-m lots  none for \"lots\""),
            ("-I 64m", "-I 64m  none for \"64m\""),
            ("-U 0", "-U 0  nothing is needed for it"),
            ("-o hashpower=20", "-o hashpower=20  none: the index grows by itself"),
            ("-o nonsense", "-o nonsense  none: memcached's documents name no such option"),
            ("-m", "-m  none for \"\""),
        ] {
            let found = explained(&format!("tapetum serve {line}"));
            assert!(found.contains(told), "{line}: {found}");
        }
    }

    #[test]
    fn the_document_has_every_option() {
        let document = include_str!("../../../../docs/COMING-FROM.md");
        for flag in FLAGS.iter().chain(&EXTENDED) {
            assert!(document.contains(&format!("`{}`", flag.names[0])), "{}", flag.names[0]);
        }
    }

    #[test]
    fn no_option_stands_twice() {
        for flags in [&FLAGS[..], &EXTENDED[..]] {
            let mut names: Vec<&str> = flags.iter().flat_map(|flag| flag.names).copied().collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }
}

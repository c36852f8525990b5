//! A test that the commands which the documents name are there: every `cargo x …` with its options, every `make …`, and every command
//! line of `tapetum`; and that the manual's table has every option of `serve`. `cargo x test-docs` runs what can be run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser};
use tapetum_server::cli::arguments::Cli;

use crate::arguments::{Checked, Mode};
use crate::{Failure, dispatch, workspace};

/// Words of `cargo x bench` that are not rows.
const BESIDE_ROWS: [&str; 2] = ["keep", "report"];
/// Commands of which the document says how they begin alone.
const ELLIPSES: [&str; 2] = ["…", "..."];

/// README and the documents in docs, by their paths.
fn documents() -> Vec<(PathBuf, String)> {
    let root = workspace::root();
    let mut paths = vec![root.join("README.md")];
    for folder in ["docs", "docs/decisions"] {
        let entries = std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        paths.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    paths.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// The code in a document: each line of a block, without its prompt and its comment, and each span between two backticks.
fn code(text: &str) -> Vec<String> {
    let (mut found, mut in_block) = (Vec::new(), false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            let line = line.trim_start_matches("$ ");
            found.push(line.split("  #").next().unwrap_or_default().trim().to_owned());
        } else {
            found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

/// The words after `start` of the code that begins with it.
fn commands(start: &str) -> Vec<(PathBuf, String)> {
    let mut found = BTreeSet::new();
    for (path, text) in documents() {
        let starts = |code: &String| code.strip_prefix(start).map(str::to_owned);
        found.extend(code(&text).iter().filter_map(starts).map(|words| (path.clone(), words)));
    }
    found.into_iter().collect()
}

fn words(text: &str) -> Vec<String> {
    // Options in brackets may be left out, and exist.
    text.replace(['[', ']'], "").split_whitespace().map(str::to_owned).collect()
}

/// Whether there is such a command, with such options.
fn check(command: &str) -> Result<(), Failure> {
    let mut words = words(command);
    // Placeholders for words of the reader's own.
    words.iter_mut().filter(|word| word.as_str() == "N" || word.as_str() == "F").for_each(|word| *word = "1".into());
    let Some((first, rest)) = words.split_first() else { return Ok(()) };
    if ELLIPSES.contains(&first.as_str()) {
        return Ok(());
    }
    let named = |list: &[crate::row::Row]| list.iter().any(|row| rest.first().is_some_and(|name| name == row.name));
    match (first.as_str(), rest) {
        ("bench", [] | [..]) if rest.is_empty() || rest[0] == "ROW" || ELLIPSES.contains(&rest[0].as_str()) => Ok(()),
        ("figures", []) => Ok(()),
        ("bench", _) if !named(&crate::bench::ROWS) && !BESIDE_ROWS.contains(&&*rest[0]) => {
            Err(format!("there is no row {}", rest[0]).into())
        }
        _ => match dispatch(first, rest, |_| Ok(Mode::Check)) {
            Err(failure) if failure.is::<Checked>() => Ok(()),
            Err(failure) => Err(failure),
            Ok(()) => Err("it did something where it was to check its options".into()),
        },
    }
}

/// The words of a command for a shell, up to where its output goes; quoted text is one word.
fn shell_words(command: &str) -> Vec<String> {
    let (mut words, mut quote, mut in_word) = (Vec::new(), None, false);
    for letter in command.chars() {
        match (letter, quote) {
            ('\'' | '"', None) => {
                quote = Some(letter);
                words.extend((!in_word).then(String::new));
                in_word = true;
            }
            (letter, Some(end)) if letter == end => quote = None,
            ('|' | '>' | '&', None) if !in_word => break,
            (letter, None) if letter.is_whitespace() => in_word = false,
            (letter, _) => {
                words.extend((!in_word).then(String::new));
                in_word = true;
                words.last_mut().unwrap().push(letter);
            }
        }
    }
    words
}

#[test]
fn a_shell_takes_what_stands_in_quotes_for_one_word() {
    assert_eq!(shell_words("run 'a | b' --key \"c d\"e > f"), ["run", "a | b", "--key", "c de"]);
    assert_eq!(shell_words("list --prefix '' | head"), ["list", "--prefix", ""]);
    assert_eq!(shell_words("serve &"), ["serve"]);
}

fn assert_all(start: &str, check: impl Fn(&str) -> Result<(), String>) {
    let root = workspace::root();
    let wrong = |(path, command): &(PathBuf, String)| {
        let why = check(command).err()?;
        let path: &Path = path.strip_prefix(root).unwrap_or(path);
        Some(format!("{}: {start}{command}: {why}", path.display()))
    };
    let commands = commands(start);
    assert!(!commands.is_empty(), "the documents name no {start}");
    let wrong: Vec<String> = commands.iter().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_command_of_cargo_x_is_there_with_its_options() {
    assert_all("cargo x ", |command| check(command).map_err(|failure| failure.to_string()));
}

#[test]
fn every_target_of_make_is_there() {
    let makefile = std::fs::read_to_string(workspace::root().join("Makefile")).unwrap();
    let has = |start: &str| makefile.lines().any(|line| line.starts_with(start));
    assert_all("make ", |command| {
        let missing = command.split_whitespace().take_while(|word| !word.starts_with('#')).find(|word| {
            match word.split_once('=') {
                Some((variable, _)) => !has(&format!("{variable} :=")),
                None => word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-') && !has(&format!("{word}:")),
            }
        });
        missing.map_or(Ok(()), |word| Err(format!("the Makefile has no {word}")))
    });
}

#[test]
fn every_command_line_of_tapetum_is_understood() {
    for start in ["tapetum ", "target/quick/tapetum "] {
        assert_all(start, |command| {
            let mut command = shell_words(command);
            // Variables of the reader's shell.
            command.iter_mut().filter(|word| word.starts_with('$')).for_each(|word| *word = "1".into());
            let parse = |more: &str| {
                let words = command.iter().map(String::as_str).chain(more.split_whitespace());
                let words = std::iter::once("tapetum").chain(words);
                Cli::try_parse_from(words).map(drop).or_else(|error| match error.use_stderr() {
                    true => Err(error.to_string()),
                    false => Ok(()),
                })
            };
            // An option at the end may be named without its value.
            parse("").or_else(|why| parse("1").map_err(|_| why))
        });
    }
}

#[test]
fn manual_has_every_option_of_serve() {
    let manual = std::fs::read_to_string(workspace::root().join("docs/MANUAL.md")).unwrap();
    let cli = Cli::command();
    let serve = cli.find_subcommand("serve").unwrap();
    let has_row = |option: &str| {
        let mut rows = manual.lines().filter_map(|line| line.strip_prefix("| `--")?.split('|').next());
        rows.any(|names| format!("--{names}").split(['`', ' ']).any(|word| word == format!("--{option}")))
    };
    let shown = serve.get_arguments().filter(|option| !option.is_hide_set());
    let missing: Vec<&str> = shown.filter_map(|option| option.get_long()).filter(|option| !has_row(option)).collect();
    assert!(missing.is_empty(), "the manual's table of options lacks {missing:?}");
}

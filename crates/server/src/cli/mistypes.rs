//! Suggestions for mistyped options, commands and numbers, where clap has none or too many. Pure.

use std::error::Error as _;
use std::ffi::OsString;
use std::num::{IntErrorKind, ParseIntError};

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{Arg, Command};

use super::memcached_line;
use super::presets::Leaf;
use tapetum_service::suggestion::nearest;

const NOT_UTF8: &str = "an argument is not UTF-8: write each such byte of a key as \\xHH, as `tapetum list` prints it, and send a value to \
                        standard input with `tapetum put KEY -`\n\nFor more information, try '--help'.\n";

/// The same error with the single most likely name, or with the condition that a number must meet.
pub fn explain(mut error: Error, root: &Command, words: &[OsString]) -> Error {
    let leaf = Leaf::find(root, words);
    let command = leaf.as_ref().map_or(root, |leaf| leaf.command);
    if let Some(error) = of_negative(&error, words) {
        return error;
    }
    if let Some(error) = of_memcached(&error, leaf.as_ref(), words) {
        return error;
    }
    if let Some(error) = of_pictures(&error) {
        return error;
    }
    match error.kind() {
        ErrorKind::UnknownArgument if error.get(ContextKind::SuggestedArg).is_none() => {
            let options = command.get_arguments().chain(root.get_arguments()).filter_map(Arg::get_long);
            let typed = text(&error, ContextKind::InvalidArg).and_then(|typed| typed.strip_prefix("--"));
            if let Some(near) = typed.and_then(|typed| nearest(typed, options)) {
                error.insert(ContextKind::SuggestedArg, ContextValue::String(format!("--{near}")));
            }
        }
        ErrorKind::InvalidSubcommand => {
            let names = command.get_subcommands().map(Command::get_name);
            let near = text(&error, ContextKind::InvalidSubcommand).and_then(|typed| nearest(typed, names));
            if let Some(near) = near {
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::String(near.into()));
            }
        }
        ErrorKind::InvalidUtf8 => return Error::raw(ErrorKind::InvalidUtf8, NOT_UTF8),
        ErrorKind::ValueValidation => return of_number(&error).unwrap_or(error),
        _ => {}
    }
    error
}

/// Explains a command line of memcached's.
fn of_memcached(error: &Error, leaf: Option<&Leaf<'_>>, words: &[OsString]) -> Option<Error> {
    let typed = text(error, ContextKind::InvalidArg).filter(|_| error.kind() == ErrorKind::UnknownArgument)?;
    let is_serve = leaf.is_none_or(|leaf| leaf.command.get_name() == "serve");
    let message = || memcached_line::explain(typed, words);
    (is_serve && memcached_line::has(typed)).then(|| Error::raw(ErrorKind::UnknownArgument, message()))
}

/// Explains `tapetum import` in a build without pictures.
fn of_pictures(error: &Error) -> Option<Error> {
    let typed = text(error, ContextKind::InvalidSubcommand)?;
    (typed == "import" && !cfg!(feature = "images")).then(|| {
        let message = "this tapetum was built without pictures, and has no import: build it with --features images (make setup-images installs \
                       what that needs)\n";
        Error::raw(ErrorKind::InvalidSubcommand, message)
    })
}

/// Replaces "invalid digit found in string".
fn of_number(error: &Error) -> Option<Error> {
    let wrong: &ParseIntError = error.source()?.downcast_ref()?;
    let (typed, option) = (text(error, ContextKind::InvalidValue)?, text(error, ContextKind::InvalidArg)?);
    let advice = match wrong.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "give a smaller number",
        _ => "give a whole number",
    };
    let message = format!("invalid value '{typed}' for '{option}': {advice}\n\nFor more information, try '--help'.\n");
    Some(Error::raw(ErrorKind::ValueValidation, message))
}

/// Explains `--capacity -1`, whose second word clap takes for an option.
fn of_negative(error: &Error, words: &[OsString]) -> Option<Error> {
    let typed = text(error, ContextKind::InvalidArg)?;
    if error.kind() != ErrorKind::UnknownArgument
        || !typed.strip_prefix('-')?.starts_with(|digit: char| digit.is_ascii_digit())
    {
        return None;
    }
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let [option, value] = words.windows(2).find(|pair| pair[0].starts_with("--") && pair[1].starts_with(typed))? else {
        return None;
    };
    let why = match *option {
        "--prefix" | "--from" | "--to" => format!("write {option}={value}, so that it is not taken for an option"),
        _ => "no option takes a number below 0".to_owned(),
    };
    let message = format!("invalid value '{value}' for '{option}': {why}\n\nFor more information, try '--help'.\n");
    Some(Error::raw(ErrorKind::ValueValidation, message))
}

fn text(error: &Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::cli::arguments::Cli;

    #[track_caller]
    fn says(line: &str, told: &str) {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let error = Cli::try_parse_from(&words).unwrap_err();
        let error = explain(error, &Cli::command(), &words);
        assert_eq!(error.exit_code(), 2);
        let error = error.render().to_string();
        assert!(error.contains(told), "{line}: {error}");
    }

    #[test]
    fn the_name_that_was_meant_is_told_however_short_it_is() {
        says("tapetum serve --upd 1", "a similar argument exists: '--udp'");
        says("tapetum keyspace list --lgo info", "a similar argument exists: '--log'");
        says("tapetum inspect --mpa", "a similar argument exists: '--map'");
        says("tapetum serve --capacty 1GiB", "a similar argument exists: '--capacity'");
        says("tapetum pipeline rn x", "a similar subcommand exists: 'run'");
        says("tapetum keyspace creat x", "a similar subcommand exists: 'create'");
        says("tapetum srve", "a similar subcommand exists: 'serve'");
        says("tapetum serve --port 11311", "--memcached 127.0.0.1:11311");
        says("tapetum get k --port 11311", "unexpected argument '--port'");
        #[cfg(not(feature = "images"))]
        says("tapetum import images d", "--features images");
        says("tapetum get k --xyzzy", "unexpected argument '--xyzzy'");
    }

    #[test]
    fn a_number_that_is_none_is_refused_in_plain_words() {
        says("tapetum serve --threads many", "invalid value 'many' for '--threads <N>': give a whole number");
        says("tapetum serve --idle-timeout 5s", "give a whole number");
        says("tapetum serve --backlog 99999999999999999999", "give a smaller number");
        says("tapetum serve --threads 0", "0 is not in 1..=1024");
        says(
            "tapetum serve --capacity -1GiB",
            "invalid value '-1GiB' for '--capacity': no option takes a number below 0",
        );
        says("tapetum put balance -5", "use '-- -5'");
    }
}

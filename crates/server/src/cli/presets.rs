//! Options from other places than the command line: from environment variables, and from the file of `--config`.
//!
//! ```text
//! TAPETUM_DRIVE_THREADS=2 ┐
//!                         ├─► --drive-threads=2, before the words of the command line ─► clap
//! drive-threads = 2       ┘
//! ```
//! Invariants:
//! 1. An option means the same wherever it is given: clap parses all of them as words of the command line.
//! 2. The command line overrides variables, and variables override the file. An option that conflicts with an overriding one is left out
//!    too.
//! 3. `serve` takes all of its options this way. Other commands take only the store's place, its memory and the log's level, so no variable
//!    changes what another command does.
//!
//! Pure, except for reading the file. One thread.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Command};
use toml_edit::{Document, Item, Value};

use crate::tools::text_file;
use tapetum_service::suggestion::{is_one_slip, nearest};

/// Options that commands other than `serve` take.
const OF_ANY_COMMAND: [&str; 6] = ["data", "drive", "memory", "log", "users-file", "password-file"];
/// Options of `serve` that only the command line may give.
const OF_COMMAND_LINE: [&str; 9] =
    ["config", "help", "password-file", "quiet", "server", "server-ca", "user", "verbose", "version"];

/// The words of a command line, and the origin of the options that were added.
#[derive(Debug, Default)]
pub struct Completed {
    pub words: Vec<OsString>,
    origins: Vec<(String, String)>,
}

impl Completed {
    /// The origin of an option's value, with the option named as in clap (`--memory <SIZE>`). `None` if it was typed.
    pub fn origin_of(&self, shown: &str) -> Option<&str> {
        let option = shown.split([' ', '=', '[']).next()?.strip_prefix("--")?;
        self.origins.iter().find(|(name, _)| name == option).map(|(_, origin)| &origin[..])
    }
}

/// One option and its value.
struct Preset {
    name: String,
    words: Vec<String>,
    origin: String,
}

/// The variables of the environment, by name.
pub type Variables = BTreeMap<String, String>;

/// Adds options to `words`, the first of which is the program's name.
///
/// # Errors
/// Each names the file and its line, or the variable.
pub fn complete(root: &Command, words: Vec<OsString>, variables: &Variables) -> Result<Completed, String> {
    let Some(leaf) = Leaf::find(root, &words) else { return Ok(Completed { words, ..Completed::default() }) };
    refuse_mistyped(root, &leaf, variables)?;
    let path = config_path(&words, variables);
    let file = path.map(|path| read_file(root, Path::new(&path))).transpose()?.unwrap_or_default();
    let from_variables = leaf.options().filter_map(|option| from_variable(option, variables).transpose());
    let presets = from_variables.collect::<Result<Vec<_>, _>>()?.into_iter().chain(file);
    let mut given = leaf.given(&words);
    let (mut added, mut origins) = (Vec::new(), Vec::new());
    for Preset { name, words, origin } in presets {
        let Some(option) = leaf.options().find(|option| option.get_long() == Some(&name)) else { continue };
        let is_taken = given.iter().any(|other| other == option.get_id() || leaf.conflict(option, other.as_str()));
        if !is_taken {
            given.push(option.get_id().clone());
            added.extend(words.into_iter().map(OsString::from));
            origins.push((name, origin));
        }
    }
    let mut words = words;
    drop(words.splice(leaf.at..leaf.at, added));
    Ok(Completed { words, origins })
}

/// The command that a command line names.
pub(super) struct Leaf<'a> {
    root: &'a Command,
    pub(super) command: &'a Command,
    /// The index of the word behind the command's name.
    at: usize,
    is_serve: bool,
}

impl<'a> Leaf<'a> {
    /// `None` if no command is named.
    pub(super) fn find(root: &'a Command, words: &[OsString]) -> Option<Leaf<'a>> {
        let (mut command, mut at, mut looked_at) = (root, 0, 1);
        while let Some(word) = words.get(looked_at).and_then(|word| word.to_str()) {
            let takes_next = |option: &Arg| {
                let is_it = word.strip_prefix("--").is_some_and(|name| option.get_long() == Some(name));
                is_it && option.get_action().takes_values()
            };
            if word.starts_with('-') {
                looked_at += if root.get_arguments().any(takes_next) { 2 } else { 1 };
            } else if let Some(found) = command.find_subcommand(word) {
                (command, at, looked_at) = (found, looked_at + 1, looked_at + 1);
            } else {
                break;
            }
        }
        let is_serve = command.get_name() == "serve";
        (at > 0).then_some(Leaf { root, command, at, is_serve })
    }

    /// The options that other places may give.
    fn options(&self) -> impl Iterator<Item = &'a Arg> {
        let (is_serve, is_resize) = (self.is_serve, self.command.get_name() == "resize");
        let has_store = self.command.get_arguments().any(|option| option.get_long() == Some("data"));
        let options = self.command.get_arguments().chain(self.root.get_arguments());
        options.filter(move |option| match option.get_long() {
            Some(name) if is_serve => !OF_COMMAND_LINE.contains(&name),
            // A resize takes --memory as its new value, so no default may be added.
            Some("memory") => has_store && !is_resize,
            Some(name) => OF_ANY_COMMAND.contains(&name),
            None => false,
        })
    }

    /// The options that the command line gives.
    fn given(&self, words: &[OsString]) -> Vec<clap::Id> {
        let words = words.iter().map_while(|word| word.to_str().filter(|word| *word != "--"));
        let names: Vec<&str> = words
            .filter_map(|word| word.strip_prefix("--"))
            .map(|word| word.split('=').next().unwrap_or(word))
            .collect();
        let options = self.command.get_arguments().chain(self.root.get_arguments());
        let is_said = |option: &&Arg| {
            let aliases = option.get_all_aliases().unwrap_or_default();
            option.get_long().into_iter().chain(aliases).any(|name| names.contains(&name))
        };
        let said = options.filter(is_said);
        said.map(|option| option.get_id().clone()).collect()
    }

    /// Whether one of the two options forbids the other.
    fn conflict(&self, option: &Arg, other: &str) -> bool {
        let forbids = |one: &Arg, other: &str| {
            self.command.get_arg_conflicts_with(one).iter().any(|forbidden| forbidden.get_id() == other)
        };
        let others = self.command.get_arguments().find(|one| one.get_id() == other);
        let is_own = self.command.get_arguments().any(|one| one.get_id() == option.get_id());
        is_own && (forbids(option, other) || others.is_some_and(|other| forbids(other, option.get_id().as_str())))
    }
}

fn config_path(words: &[OsString], variables: &Variables) -> Option<OsString> {
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).take_while(|word| *word != "--").collect();
    let behind = words.iter().position(|word| *word == "--config").and_then(|at| words.get(at + 1).copied());
    let within = words.iter().find_map(|word| word.to_str()?.strip_prefix("--config="));
    behind.map(OsStr::to_owned).or_else(|| within.map(OsString::from)).or_else(|| {
        let named = variables.get("TAPETUM_CONFIG")?;
        Some(named.into())
    })
}

fn takes_several(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::Append)
}

/// Whether the option may be given without a value.
fn may_stand_alone(option: &Arg) -> bool {
    !option.get_action().takes_values() || option.get_num_args().is_some_and(|number| number.min_values() == 0)
}

fn variable_name(option: &str) -> String {
    format!("TAPETUM_{}", option.to_uppercase().replace('-', "_"))
}

/// An error for a variable that is one typing mistake away from one of the command's. Other variables with this prefix may belong to other
/// programs: Kubernetes sets `TAPETUM_SERVICE_HOST` beside a service of this name.
fn refuse_mistyped(root: &Command, leaf: &Leaf<'_>, variables: &Variables) -> Result<(), String> {
    let serve = root.find_subcommand("serve").expect("the command line has it");
    let known: Vec<String> =
        serve.get_arguments().chain(root.get_arguments()).filter_map(Arg::get_long).map(variable_name).collect();
    let own: Vec<String> = leaf.options().filter_map(Arg::get_long).chain(["config"]).map(variable_name).collect();
    let unknown = variables.keys().filter(|name| name.starts_with("TAPETUM_") && !known.contains(name));
    for name in unknown {
        if let Some(meant) = own.iter().find(|meant| is_one_slip(name, meant)) {
            return Err(format!("no option is set by the variable {name}: did you mean {meant}?"));
        }
    }
    Ok(())
}

/// The value of a variable. An empty one counts as absent.
fn from_variable(option: &Arg, variables: &Variables) -> Result<Option<Preset>, String> {
    let Some(name) = option.get_long() else { return Ok(None) };
    let variable_name = variable_name(name);
    let Some(text) = variables.get(&variable_name).filter(|text| !text.is_empty()) else { return Ok(None) };
    let words = match takes_several(option) {
        true => text.split(',').map(|text| format!("--{name}={text}")).collect(),
        false => words_of(option, name, text).map_err(|wrong| format!("{variable_name}: {wrong}"))?,
    };
    Ok(Some(Preset { name: name.into(), words, origin: format!("the variable {variable_name}") }))
}

/// Whether its value is a path or a name. Any text is valid for such an option, even a number or `true` that was meant for another option.
fn takes_text(option: &Arg) -> bool {
    let taken = option.get_value_parser().type_id();
    option.get_action().takes_values() && (taken == TypeId::of::<PathBuf>() || taken == TypeId::of::<String>())
}

/// The words of the command line for one value.
fn words_of(option: &Arg, name: &str, text: &str) -> Result<Vec<String>, String> {
    match text {
        "true" if may_stand_alone(option) => Ok(vec![format!("--{name}")]),
        "false" if may_stand_alone(option) => Ok(Vec::new()),
        _ if !option.get_action().takes_values() => Err(format!("{text:?} is neither true nor false")),
        text => Ok(vec![format!("--{name}={text}")]),
    }
}

/// The options in the file, all of which must be options of `serve`.
fn read_file(root: &Command, path: &Path) -> Result<Vec<Preset>, String> {
    let shown = path.display();
    let cannot = |error: &dyn std::fmt::Display| format!("cannot read {shown}: {error}; give another --config");
    let bytes = fs::read(path).map_err(|error| cannot(&error))?;
    let bytes = text_file::behind_mark(&bytes).map_err(|why| format!("{shown}: {why}"))?;
    let text = std::str::from_utf8(bytes).map_err(|error| cannot(&error))?;
    let document = Document::parse(text).map_err(|error| format!("{shown}: {error}"))?;
    let serve = root.find_subcommand("serve").expect("the command line has it");
    let options: Vec<&Arg> = serve.get_arguments().chain(root.get_arguments()).collect();
    let names = || options.iter().filter_map(|option| option.get_long()).filter(|name| !OF_COMMAND_LINE.contains(name));
    let preset = |(name, item): (&str, &Item)| -> Result<Preset, String> {
        let span = document.key(name).and_then(toml_edit::Key::span).unwrap_or_default();
        let line = 1 + text[..span.start].matches('\n').count();
        let place = format!("{shown}, line {line}");
        let option = names()
            .find(|known| *known == name)
            .and_then(|_| options.iter().find(|option| option.get_long() == Some(name)));
        let Some(option) = option else {
            if item.is_table() {
                return Err(format!("{place}: options stand in no section: leave the line [{name}] out"));
            }
            let near = nearest(name, names()).map_or(String::new(), |near| format!(": did you mean {near:?}?"));
            return Err(format!("{place}: `tapetum serve` has no option {name:?}{near}"));
        };
        let words = words_of_item(option, name, item).map_err(|wrong| format!("{place}: {name}: {wrong}"))?;
        Ok(Preset { name: name.into(), words, origin: place })
    };
    document.iter().map(preset).collect()
}

fn words_of_item(option: &Arg, name: &str, item: &Item) -> Result<Vec<String>, String> {
    let value = item.as_value().ok_or("give a value; there are no sections")?;
    let text_of = |value: &Value| if takes_text(option) { quoted_text_of(value) } else { text_of(value) };
    let Some(several) = value.as_array() else { return words_of(option, name, &text_of(value)?) };
    let texts = several.iter().map(text_of).collect::<Result<Vec<_>, _>>()?;
    match option.get_value_delimiter() {
        Some(delimiter) => words_of(option, name, &texts.join(&delimiter.to_string())),
        None if takes_several(option) => Ok(texts.iter().map(|text| format!("--{name}={text}")).collect()),
        None => Err("give one value".into()),
    }
}

fn text_of(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.value().clone()),
        Value::Integer(number) => Ok(number.value().to_string()),
        Value::Float(number) => Ok(number.value().to_string()),
        Value::Boolean(is_on) => Ok(is_on.value().to_string()),
        _ => Err("give text, a number, or true or false".into()),
    }
}

/// The value of an option that takes a path or a name; it must be quoted.
fn quoted_text_of(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.value().clone()),
        other => {
            let (kind, written) = (other.type_name(), text_of(other).unwrap_or_else(|_| "…".into()));
            Err(format!("give text, and this is of the type {kind}: write \"{written}\" if it is meant"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::arguments::Cli;
    use clap::CommandFactory;

    fn completed(line: &str, variables: &[(&str, &str)]) -> Result<String, String> {
        let words = line.split_whitespace().map(OsString::from).collect();
        let variables = variables.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect();
        let completed = complete(&Cli::command(), words, &variables)?;
        Ok(completed.words.join(OsStr::new(" ")).into_string().unwrap())
    }

    fn file(name: &str, text: &str) -> String {
        let path = std::env::temp_dir().join(format!("tapetum-presets-{name}-{}", std::process::id()));
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    #[test]
    fn variables_stand_before_the_command_line_and_give_way_to_it() {
        let variables =
            [("TAPETUM_MEMORY", "1GiB"), ("TAPETUM_MEMCACHED", "unix:/x,unix:/y"), ("TAPETUM_CACHE", "true")];
        let words = |line: &str| completed(line, &variables).unwrap();
        let said = "--memory=1GiB --memcached=unix:/x --memcached=unix:/y --cache";
        assert_eq!(words("tapetum serve --threads 1"), format!("tapetum serve {said} --threads 1"));
        assert_eq!(
            words("tapetum serve --memory 2GiB --memcached=z --cache"),
            "tapetum serve --memory 2GiB --memcached=z --cache"
        );
        assert_eq!(words("tapetum"), "tapetum");
        // A server that is named takes the place of the data.
        for line in ["tapetum dump --server grpc://127.0.0.1:1", "tapetum dump --memcached 127.0.0.1:1"] {
            assert_eq!(completed(line, &[("TAPETUM_DATA", "d")]).unwrap(), line);
        }
        assert_eq!(
            completed("tapetum serve", &[("TAPETUM_CACHE", "false"), ("TAPETUM_UDP", "true")]).unwrap(),
            "tapetum serve --udp"
        );
        assert_eq!(
            completed("tapetum serve", &[("TAPETUM_CACHE", ""), ("TAPETUM_UDP", "7")]).unwrap(),
            "tapetum serve --udp=7"
        );
        let error = completed("tapetum serve", &[("TAPETUM_CACHE", "maybe")]).unwrap_err();
        assert!(error.contains("TAPETUM_CACHE") && error.contains("neither true nor false"), "{error}");
    }

    #[test]
    fn a_mistyped_variable_is_refused_and_those_of_others_are_not() {
        let error = completed("tapetum serve", &[("TAPETUM_SINC", "always")]).unwrap_err();
        assert!(error.contains("TAPETUM_SINC: did you mean TAPETUM_SYNC?"), "{error}");
        let error = completed("tapetum get k", &[("TAPETUM_DTAA", "d")]).unwrap_err();
        assert!(error.contains("did you mean TAPETUM_DATA?"), "{error}");
        let others = [
            ("TAPETUM_SERVICE_HOST", "10.0.0.1"),
            ("TAPETUM_PORT_11211_TCP", "tcp://10.0.0.1:11211"),
            ("TAPETUM_PORT", "x"),
            ("TAPETUM_UDP_RATE", "1"),
        ];
        assert_eq!(completed("tapetum get k", &others).unwrap(), "tapetum get k");
    }

    #[test]
    fn other_commands_take_the_store_and_the_log_and_nothing_else() {
        let variables = [
            ("TAPETUM_DATA", "d"),
            ("TAPETUM_MEMORY", "1GiB"),
            ("TAPETUM_MEMCACHED", "unix:/x"),
            ("TAPETUM_LOG", "debug"),
            ("TAPETUM_YES", "true"),
            ("TAPETUM_CAPACITY", "1GiB"),
        ];
        let words = |line: &str| completed(line, &variables).unwrap();
        assert_eq!(words("tapetum -v get k"), "tapetum -v get --data=d --memory=1GiB --log=debug k");
        assert_eq!(words("tapetum --log warn repair"), "tapetum --log warn repair --data=d --memory=1GiB");
        assert_eq!(words("tapetum keyspace create a"), "tapetum keyspace create --data=d --memory=1GiB --log=debug a");
        assert_eq!(words("tapetum generate papers"), "tapetum generate papers --log=debug");
        // A command to a server needs no data directory, and neither does one with a drive.
        assert_eq!(words("tapetum stats --memcached m"), "tapetum stats --log=debug --memcached m");
        assert_eq!(words("tapetum list --drive f"), "tapetum list --memory=1GiB --log=debug --drive f");
        assert_eq!(words("tapetum resize --capacity 1"), "tapetum resize --data=d --log=debug --capacity 1");
    }

    #[test]
    fn a_file_is_below_variables_and_its_lists_are_several() {
        let path = file(
            "whole",
            "# Of the server.\nmemcached = [\"127.0.0.1:1\", \"unix:/x\"]\nmemory = \"64MiB\"\ndrive-threads = 2\nslab-factor = 1.5\n\
             cache = true\nudp = false\nno-flush-all = true\nudp-allow = [\"127.0.0.0/8\", \"::1\"]\ndata = \"d\"\n",
        );
        let line = format!("tapetum serve --config {path}");
        assert_eq!(
            completed(&line, &[("TAPETUM_MEMORY", "1GiB"), ("TAPETUM_DRIVE", "f")]).unwrap(),
            format!(
                "tapetum serve --drive=f --memory=1GiB --memcached=127.0.0.1:1 --memcached=unix:/x --drive-threads=2 --slab-factor=1.5 \
                 --cache --no-flush-all --udp-allow=127.0.0.0/8,::1 --config {path}"
            )
        );
        assert_eq!(
            completed("tapetum get k", &[("TAPETUM_CONFIG", &path)]).unwrap(),
            "tapetum get --memory=64MiB --data=d k"
        );
    }

    #[test]
    fn a_file_may_begin_with_a_byte_order_mark() {
        let path = file("marked", "\u{feff}memory = \"64MiB\"\n");
        assert!(completed(&format!("tapetum serve --config {path}"), &[]).unwrap().contains("--memory=64MiB"));
        let path = file("wide", "");
        fs::write(&path, b"\xff\xfem\0").unwrap();
        let error = completed(&format!("tapetum serve --config {path}"), &[]).unwrap_err();
        assert!(error.contains("UTF-16LE") && error.contains("iconv"), "{error}");
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told_with_its_line() {
        for (name, text, advice) in [
            (
                "unknown",
                "memory = \"1GiB\"\n\nmemry = 1\n",
                "line 3: `tapetum serve` has no option \"memry\": did you mean \"memory\"?",
            ),
            ("first", "config = \"x\"\n", "line 1: `tapetum serve` has no option \"config\""),
            (
                "section",
                "threads = 1\n[serve]\nmemory = 1\n",
                "line 2: options stand in no section: leave the line [serve] out",
            ),
            ("several", "memory = [\"1\", \"2\"]\n", "line 1: memory: give one value"),
            ("flag", "cache = \"much\"\n", "line 1: cache: \"much\" is neither true nor false"),
            ("broken", "threads = 1\nmemory = \n", "line 2"),
            (
                "number",
                "data = 5\n",
                "line 1: data: give text, and this is of the type integer: write \"5\" if it is meant",
            ),
            ("path", "drive = 1.5 # disk\n", "line 1: drive: give text, and this is of the type float"),
            ("truth", "hot-keys = true\n", "line 1: hot-keys: give text, and this is of the type boolean"),
            (
                "name",
                "keyspace = [\"a\", 7]\n",
                "line 1: keyspace: give text, and this is of the type integer: write \"7\"",
            ),
            (
                "nested",
                "nbd-read-only = [[\"a\"]]\n",
                "line 1: nbd-read-only: give text, and this is of the type array",
            ),
            ("date", "memory = 2026-11-28\n", "line 1: memory: give text, a number, or true or false"),
        ] {
            let path = file(name, text);
            let error = completed(&format!("tapetum serve --config={path}"), &[]).unwrap_err();
            assert!(error.contains(advice) && error.contains(&path), "{error}");
        }
        let error = completed("tapetum get k --config /absent/file", &[]).unwrap_err();
        assert!(error.contains("/absent/file") && error.contains("--config"), "{error}");
    }

    #[test]
    fn a_value_knows_where_it_came_from() {
        let words = ["tapetum", "serve"].map(OsString::from).to_vec();
        let variables = Variables::from([("TAPETUM_MEMORY".into(), "lots".into())]);
        let completed = complete(&Cli::command(), words, &variables).unwrap();
        assert_eq!(completed.origin_of("--memory <SIZE>"), Some("the variable TAPETUM_MEMORY"));
        assert_eq!(completed.origin_of("--data <DIR>"), None);
    }
}

//! Loading pictures beside other loaders, measured by python/bench: `cargo x bench-python images`. Each of its rows writes its own result,
//! `images-ROW`.

use serde_json::Value;

use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;
use crate::row::Missed;
use crate::workspace::Profile;
use crate::{Failure, python, workspace};

/// Results of the rows. python/bench/images.py names the rows without the prefix.
const RESULTS: [&str; 7] =
    ["images-small", "images-large", "images-stages", "images-trainer", "images-sizes", "images-weights", SIDES];
/// The row with a drive in a process of its own, which decodes pictures.
const SIDES: &str = "images-sides";
const PREFIX: &str = "images-";
/// Options of python/bench/images.py.
const OPTIONS: [&str; 7] = ["contenders", "rounds", "pictures", "core", "seed", "rates", "photographs"];

/// `--rivals all` also installs rivals that take gigabytes. `--size smallest` only tests that everything runs.
pub fn run(name: &str, arguments: &Arguments) -> Result<(), Failure> {
    if name != "images" {
        return Err(format!("there is no row {name} of bench-python: there is images").into());
    }
    let results = arguments.text("rows").map(results_of).transpose()?.unwrap_or_else(|| RESULTS.to_vec());
    let given = |name: &&str| arguments.text(name).map(|value| format!("--{name}={value}"));
    let mut options: Vec<String> = OPTIONS.iter().filter_map(given).collect();
    let is_smallest = match arguments.text("size").unwrap_or("full") {
        "full" => false,
        "smallest" => true,
        other => return Err(format!("--size takes full or smallest, not {other}").into()),
    };
    options.extend(is_smallest.then(|| "--smoke".to_owned()));
    let requirements = match arguments.text("rivals").unwrap_or("few") {
        "few" => "python/bench/requirements.txt",
        "all" => "python/bench/rivals.txt",
        other => return Err(format!("--rivals takes few or all, not {other}").into()),
    };
    let server = arguments.server();
    arguments.finish()?;
    if results.contains(&SIDES) {
        let built = || workspace::build_server_with(Profile::Release, &["images"]);
        options.push(format!("--server={}", server.map_or_else(built, Ok)?.display()));
    }
    let python = python::bench_interpreter(requirements)?;
    std::fs::create_dir_all(arguments.results())?;
    let mut missed = Vec::new();
    for left_as in results {
        let row = &left_as[PREFIX.len()..];
        let mut outcome = Outcome::new(arguments, left_as, "pictures loaded for training".into());
        let found = arguments.results().join("images-found.json");
        let script = workspace::root().join("python/bench/images.py");
        let mut images = std::process::Command::new(&python);
        images.arg(script).args(&options).arg(format!("--rows={row}")).arg("--out").arg(&found);
        let why = format!("python/bench/images.py failed in the row {row}; its message is above");
        workspace::succeed(&mut images, why)?;
        let text = std::fs::read_to_string(&found)?;
        take(&mut outcome, &serde_json::from_str::<Value>(&text)?[row], is_smallest)?;
        std::fs::remove_file(&found)?;
        match outcome.end().map_err(|error| error.downcast::<Missed>()) {
            Ok(()) => {}
            Err(Ok(of_row)) => missed.push(format!("{left_as}: {}", of_row.0)),
            Err(Err(error)) => return Err(error),
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(Missed(missed.join("; ")).into()) }
}

/// Results of the rows that `--rows` names.
fn results_of(names: &str) -> Result<Vec<&'static str>, Failure> {
    let result = |name: &str| {
        let unknown =
            || format!("--rows takes small, large, stages, trainer, sizes, weights and sides, not {name}").into();
        RESULTS.into_iter().find(|result| result[PREFIX.len()..] == *name).ok_or_else(unknown)
    };
    names.split(',').map(result).collect()
}

/// Takes the results of a row from python/bench/found.py. The smallest size is not held to aims.
fn take(outcome: &mut Outcome, found: &Value, is_smallest: bool) -> Result<(), Failure> {
    let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| format!("{value} is no text"));
    let spread = |turns: &Value| {
        let turns = turns.as_array().ok_or_else(|| format!("{turns} is no list of turns"))?;
        Ok::<_, Failure>(Spread::of(turns.iter().filter_map(Value::as_f64)))
    };
    let list = |name: &str| found[name].as_array().cloned().unwrap_or_default();
    outcome.about(text(&found["about"])?);
    outcome.columns(&list("columns").iter().map(text).collect::<Result<Vec<_>, _>>()?);
    for line in list("lines") {
        let figures = line["figures"].as_array().into_iter().flatten().map(spread).collect::<Result<_, _>>()?;
        outcome.line(text(&line["name"])?, figures);
    }
    for held in list("held") {
        let reach = match (held["least"].as_f64(), held["most"].as_f64()) {
            (Some(least), _) if !is_smallest => Reach::AtLeast(least),
            (_, Some(most)) if !is_smallest => Reach::AtMost(most),
            _ => Reach::Reported,
        };
        outcome.hold(text(&held["what"])?, spread(&held["turns"])?, reach);
    }
    Ok(())
}

//! nKV's walk through a database of papers, at the drive and on the host: venue and year → the most central papers → one of them → others
//! of its venue and year, and of its first author. Each question is a process, as when people ask; `--scale 1` is nKV's size.

use std::path::Path;
use std::process::Command;

use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;
use crate::workspace::Scratch;

/// Flash for a database of scale 1, and the addition that a small one needs.
const CAPACITY_OF_ONE: f64 = 8e9;
const CAPACITY_LEAST: u64 = 256 << 20;
const SIDES: [&str; 2] = ["drive", "host"];
const COLUMNS: [&str; 9] = [
    "step",
    "s: drive",
    "host",
    "CPU s: drive",
    "host",
    "bytes from flash: drive",
    "host",
    "bytes across: drive",
    "host",
];

/// The costs of a question, in the order of the columns.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Took([f64; 4]);

struct Walk<'a> {
    tapetum: &'a Path,
    data: &'a Path,
    memory: String,
}

/// A question, and its costs on each side, round by round.
struct Step {
    name: &'static str,
    words: Vec<String>,
    took: [Vec<Took>; 2],
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let scale = arguments.text("scale").unwrap_or("0.01").to_owned();
    let number: f64 = scale.parse().map_err(|_| "--scale is a number, such as 0.01")?;
    let rounds = arguments.number("rounds", 3)?;
    let memory = arguments.size("memory", 64 << 20)?.to_string();
    let capacity = arguments.size("capacity", CAPACITY_LEAST + (CAPACITY_OF_ONE * number) as u64)?.to_string();
    arguments.finish()?;
    let tapetum = arguments.measured_server(None)?;
    let scratch = Scratch::new("bench-walk")?;
    let data = scratch.folder().join("data");
    let about = format!("the walk through papers, scale {scale}, --memory {memory}");
    let mut outcome = Outcome::new(arguments, "walk", about);
    let generate = ["generate", "papers", "--scale", &scale, "--capacity", &capacity, "--memory", &memory, "--into"];
    let made = Command::new(&tapetum).args(generate).arg(&data).output()?;
    if !made.status.success() {
        return Err(format!("generate papers: {}", String::from_utf8_lossy(&made.stderr)).into());
    }
    let walk = Walk { tapetum: &tapetum, data: &data, memory };
    let mut steps = walk.steps()?;
    for _ in 0..rounds {
        for step in &mut steps {
            walk.ask_both(step)?;
        }
    }
    tell(&mut outcome, &steps);
    outcome.end()
}

fn tell(outcome: &mut Outcome, steps: &[Step]) {
    outcome.columns(&COLUMNS);
    for Step { name, took, .. } in steps {
        let figure =
            |place: usize| took.each_ref().map(|took| Spread::of(took.iter().map(|Took(figures)| figures[place])));
        outcome.line(*name, (0..4).flat_map(figure).collect());
        for (what, place) in [("time", 0), ("CPU", 1), ("bytes across", 3)] {
            let pairs = took[0].iter().zip(&took[1]);
            let ratio = Spread::of(pairs.map(|(Took(drive), Took(host))| drive[place] / host[place]));
            outcome.hold(format!("{name}: {what} at the drive ÷ on the host"), ratio, Reach::Reported);
        }
    }
}

impl Walk<'_> {
    /// The questions. Each uses the answers of those before it.
    fn steps(&self) -> Result<Vec<Step>, Failure> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let edges = "from references where venue = 'VLDB' and year between 1990 and 2020";
        let prominent = words(&["graph", "bc", "--edges", edges, "--top", "5"]);
        let paper = self.first_cell(&prominent)?;
        let one = words(&["get", &paper, "--keyspace", "papers", "--select", "venue, year, title"]);
        let year = self.first_cell(&words(&["get", &paper, "--keyspace", "papers", "--select", "year"]))?;
        let of_venue = format!("venue = 'VLDB' and year = {year}");
        let others = words(&["scan", "papers", "--where", &of_venue, "--select", "id, title"]);
        let first = format!("paper = {paper} and place = 0");
        let author = words(&["scan", "authorships", "--where", &first, "--select", "author"]);
        let of_author = format!("author = {}", self.first_cell(&author)?);
        let papers = words(&["scan", "authorships", "--where", &of_author, "--select", "paper"]);
        let steps = [
            ("papers with most paths (BC)", prominent),
            ("one of them (GET)", one),
            ("others of its venue and year (SCAN)", others),
            ("its first author (SCAN)", author),
            ("papers of the author (SCAN)", papers),
        ];
        Ok(steps.map(|(name, words)| Step { name, words, took: [Vec::new(), Vec::new()] }).into())
    }

    /// The first value of a question's answer.
    fn first_cell(&self, words: &[String]) -> Result<String, Failure> {
        let (rows, _) = self.ask(words, SIDES[0])?;
        let row = rows.first().ok_or_else(|| format!("{words:?} found nothing: take a larger --scale"))?;
        Ok(row.split(',').next().unwrap_or_default().to_owned())
    }

    /// Asks at the drive and on the host. Both must give the same answer.
    fn ask_both(&self, step: &mut Step) -> Result<(), Failure> {
        let mut answers = Vec::new();
        for (side, all) in SIDES.iter().zip(&mut step.took) {
            let (mut rows, took) = self.ask(&step.words, side)?;
            rows.sort();
            answers.push(rows);
            all.push(took);
        }
        if answers[0] == answers[1] { Ok(()) } else { Err(format!("{:?}: drive and host differ", step.words).into()) }
    }

    /// Rows without their head, and the costs.
    fn ask(&self, words: &[String], side: &str) -> Result<(Vec<String>, Took), Failure> {
        let more = ["--format", "csv", "--explain", "--run", side, "--memory", &self.memory, "--data"];
        let asked = Command::new(self.tapetum).args(words).args(more).arg(self.data).output()?;
        let told = String::from_utf8_lossy(&asked.stderr).into_owned();
        if !asked.status.success() {
            return Err(format!("{words:?}: {told}").into());
        }
        let rows = String::from_utf8_lossy(&asked.stdout).lines().skip(1).map(str::to_owned).collect();
        Ok((rows, took(&told).ok_or_else(|| format!("{words:?} did not say what it took: {told}"))?))
    }
}

/// Parses the costs at the end of `--explain`.
fn took(told: &str) -> Option<Took> {
    let number = |mark: &str| -> Option<f64> {
        let (before, _) = told.rsplit_once(mark)?;
        before.rsplit(' ').next()?.parse().ok()
    };
    let across = number(" to the drive, ")? + number(" to the host")?;
    Some(Took([number(" s, ")?, number(" s of CPU")?, number(" bytes from flash")?, across]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_question_took_is_read() {
        let told = "at the drive by this thread, rows in bulk: 1 commands and 1 wake-ups, 7 bytes read from flash, 8 sent to the drive, 9 \
                    returned; 3 of 4 records kept; 0.250 s, 0.125 s of CPU; 4096 bytes from flash, 100 to the drive, 28 to the host\n";
        assert_eq!(took(told), Some(Took([0.25, 0.125, 4096.0, 128.0])));
        assert_eq!(took("nothing"), None);
    }
}

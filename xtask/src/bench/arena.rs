//! The contenders of one row over one set of items: which ones take part, their folders, loading, and turns.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tapetum_bench::turn::{Command, Length, Report, Turn};

use super::contender::Contender;
use super::peers;
use super::shape::Shape;
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::series::Series;
use crate::workspace::Scratch;

/// A line of the table: one contender, asked in one way.
#[derive(Clone)]
pub struct Entrant {
    pub label: String,
    pub contender: &'static str,
    pub api: &'static str,
    pub threads: u64,
    pub depth: u64,
}

impl Entrant {
    pub fn new(contender: &'static str, api: &'static str, threads: u64, depth: u64) -> Entrant {
        let one = if peers::is_server(contender) { "connection" } else { "thread" };
        let plural = if threads == 1 { "" } else { "s" };
        let load = match (threads, depth) {
            (threads, 1) => format!("{threads} {one}{plural}"),
            (1, depth) => format!("depth {depth}"),
            (threads, depth) => format!("{threads} {one}{plural} × {depth}"),
        };
        Entrant { label: format!("{contender} {api}, {load}"), contender, api, threads, depth }
    }

    /// Whether its contender, or contender and way, has this name.
    pub fn is_named(&self, name: &str) -> bool {
        name == self.contender || name.split_once(' ') == Some((self.contender, self.api))
    }
}

/// The work of the entrants in a turn.
#[derive(Clone)]
pub struct Load {
    pub mix: &'static str,
    pub distribution: &'static str,
    pub length: Length,
    pub rate: Option<f64>,
    pub overwrites: Option<f64>,
}

impl Load {
    /// For one second, uniform, at full speed.
    pub fn of(mix: &'static str) -> Load {
        let length = Length::Time(Duration::from_secs(1));
        Load { mix, distribution: "uniform", length, rate: None, overwrites: None }
    }

    pub fn lasting(self, time: Duration) -> Load {
        Load { length: Length::Time(time), ..self }
    }
}

pub struct Arena {
    folder: PathBuf,
    shape: Shape,
    /// Worker threads of `tapetum serve`.
    server_threads: u64,
    /// Turns so far. Each gets its own seed, because a cache would know the keys of the turn before.
    turns: u64,
    /// The longest turn, and the most rounds of a sweep. They are limits only in a smoke run.
    turn_time_max: Duration,
    sweep_rounds_max: u64,
    binaries: Vec<(&'static str, PathBuf)>,
    running: Vec<(&'static str, Contender)>,
    /// Dropped after the contenders that run in it. `None` if the data is kept for later runs.
    _scratch: Option<Scratch>,
}

impl Arena {
    /// Builds the contenders that take part: `--contenders a,b` of `names`, or the `usual` ones. No option may be read afterwards.
    pub fn open(
        arguments: &Arguments,
        row: &str,
        shape: &Shape,
        names: &[&'static str],
        usual: &[&'static str],
    ) -> Result<Arena, Failure> {
        let chosen: Vec<&str> = arguments.text("contenders").map_or(usual.to_vec(), |text| text.split(',').collect());
        if let Some(stranger) = chosen.iter().find(|chosen| !names.contains(chosen)) {
            return Err(format!("{stranger} takes no part in {row}; there are {}", names.join(", ")).into());
        }
        let names: Vec<&'static str> = names.iter().copied().filter(|name| chosen.contains(name)).collect();
        let kept = kept(arguments, row, shape);
        arguments.finish()?;
        Arena::of(arguments, row, shape, kept, peers::binaries(arguments, &names)?)
    }

    /// A contender of this tree, and the same one of another tree, whose `target/release` is `other`. No option may be read afterwards.
    pub fn beside(
        arguments: &Arguments,
        row: &str,
        shape: &Shape,
        [this, that]: [&'static str; 2],
        other: &Path,
    ) -> Result<Arena, Failure> {
        let kept = kept(arguments, row, shape);
        arguments.finish()?;
        let mut binaries = peers::binaries(arguments, &[this])?;
        let name = binaries[0].1.file_name().expect("a contender's binary has a name");
        binaries.push((that, other.join(name)));
        Arena::of(arguments, row, shape, kept, binaries)
    }

    fn of(
        arguments: &Arguments,
        row: &str,
        shape: &Shape,
        kept: Option<PathBuf>,
        binaries: Vec<(&'static str, PathBuf)>,
    ) -> Result<Arena, Failure> {
        let (folder, scratch) = match kept {
            Some(folder) => (folder, None),
            None => {
                let scratch = Scratch::new(&format!("bench-{row}"))?;
                (scratch.folder().to_owned(), Some(scratch))
            }
        };
        std::fs::create_dir_all(&folder)?;
        Ok(Arena {
            folder,
            shape: shape.clone(),
            server_threads: 1,
            turns: 0,
            turn_time_max: arguments.time(Duration::MAX),
            sweep_rounds_max: arguments.sized(u64::MAX, 1),
            binaries,
            running: Vec::new(),
            _scratch: scratch,
        })
    }

    /// Sets the worker threads of every `tapetum serve` that is started from now on. The default is one.
    pub fn set_server_threads(&mut self, threads: u64) {
        self.server_threads = threads;
    }

    pub fn has(&self, name: &str) -> bool {
        self.binaries.iter().any(|(binary, _)| *binary == name)
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.binaries.iter().map(|(name, _)| *name).collect()
    }

    /// The limit reads the file that the store wrote.
    fn data(&self, name: &str) -> PathBuf {
        match name {
            "limit" if self.has("tapetum") => self.folder.join("tapetum"),
            "limit" => self.folder.join("server/data"),
            name => self.folder.join(name),
        }
    }

    fn start(&self, name: &'static str, items: u64, sync: bool) -> Result<Contender, Failure> {
        let (_, binary) = self.binaries.iter().find(|(binary, _)| *binary == name).ok_or("it takes no part")?;
        let data = self.data(name);
        std::fs::create_dir_all(&data)?;
        Contender::start(name, binary, &self.shape.setup(name, data, items, sync, self.server_threads))
    }

    /// Makes each contender store all items and settle, one after the other; then overwrite `overwrites` times as many.
    pub fn load(&mut self, overwrites: u64) -> Result<(), Failure> {
        for name in self.names() {
            let done = self.data(name).join("loaded");
            if name == "limit" || done.exists() {
                continue;
            }
            let begun = Instant::now();
            let items = self.shape.items;
            let mut contender = self.start(name, items, false)?;
            contender.run(&Command::Load { from: 0, to: items })?;
            contender.run(&Command::Settle)?;
            let loaded = begun.elapsed();
            if overwrites > 0 {
                contender.run(&Command::Turn(peers::overwrite(name, items * overwrites)))?;
                contender.run(&Command::Settle)?;
            }
            if peers::keeps_nothing(name) {
                self.running.push((name, contender));
            } else {
                contender.end()?;
                std::fs::write(&done, "")?;
            }
            println!("  {name}: {items} items in {:.0} s", loaded.as_secs_f64());
            if overwrites > 0 {
                let rest = (begun.elapsed() - loaded).as_secs_f64();
                println!("  {name}: {overwrites} × as many overwrites in {rest:.0} s");
            }
        }
        Ok(())
    }

    /// Makes each running contender delete these items and settle.
    pub fn remove(&mut self, from: u64, to: u64) -> Result<(), Failure> {
        for (_, contender) in &mut self.running {
            contender.run(&Command::Remove { from, to })?;
            contender.run(&Command::Settle)?;
        }
        Ok(())
    }

    /// Starts all contenders on their loaded data.
    pub fn start_all(&mut self, sync: bool) -> Result<(), Failure> {
        for name in self.names() {
            if self.contender(name).is_err() {
                let contender = self.start(name, self.shape.items, sync)?;
                self.running.push((name, contender));
            }
        }
        Ok(())
    }

    /// Runs so many rounds, in each of which every entrant has a turn.
    pub fn rounds(&mut self, entrants: &[Entrant], load: &Load, rounds: u64) -> Result<Vec<Series>, Failure> {
        let mut series: Vec<Series> = entrants.iter().map(|entrant| Series::new(&entrant.label)).collect();
        let length = match load.length {
            Length::Time(time) => Length::Time(time.min(self.turn_time_max)),
            operations => operations,
        };
        for _ in 0..rounds {
            for (entrant, series) in entrants.iter().zip(&mut series) {
                let (threads, depth) = (entrant.threads, entrant.depth);
                let command = Command::Turn(Turn {
                    distribution: load.distribution.into(),
                    rate: load.rate,
                    overwrites: load.overwrites,
                    ..Turn::uniform(load.mix, entrant.api, threads, depth, length, self.turns)
                });
                self.turns += 1;
                series.reports.push(self.contender(entrant.contender)?.run(&command)?);
            }
        }
        Ok(series)
    }

    /// The entrant with the highest throughput of each group. A group with only one entrant is not measured.
    pub fn best_of(&mut self, groups: Vec<Vec<Entrant>>, load: &Load, rounds: u64) -> Result<Vec<Entrant>, Failure> {
        let groups: Vec<Vec<Entrant>> = groups
            .into_iter()
            .map(|group| group.into_iter().filter(|entrant| self.has(entrant.contender)).collect())
            .filter(|group: &Vec<Entrant>| !group.is_empty())
            .collect();
        let all: Vec<Entrant> = groups.iter().filter(|group| group.len() > 1).flatten().cloned().collect();
        let series = self.rounds(&all, load, rounds.min(self.sweep_rounds_max))?;
        let mut series = series.iter();
        let mut best = Vec::new();
        for mut group in groups {
            if group.len() == 1 {
                best.append(&mut group);
                continue;
            }
            let rated =
                group.into_iter().zip(&mut series).map(|(entrant, series)| (entrant, series.throughput().median));
            let rated: Vec<(Entrant, f64)> = rated.collect();
            let told: Vec<String> =
                rated.iter().map(|(entrant, rate)| format!("{}: {rate:.0}/s", entrant.label)).collect();
            println!("  {}", told.join("; "));
            best.extend(rated.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(entrant, _)| entrant));
        }
        Ok(best)
    }

    pub fn run(&mut self, name: &str, command: &Command) -> Result<Report, Failure> {
        self.contender(name)?.run(command)
    }

    fn contender(&mut self, name: &str) -> Result<&mut Contender, Failure> {
        let found = self.running.iter_mut().find(|(running, _)| *running == name);
        found.map(|(_, contender)| contender).ok_or_else(|| format!("{name} is not running").into())
    }

    /// Ends all contenders; their data stays.
    pub fn end_all(&mut self) -> Result<(), Failure> {
        self.running.drain(..).try_for_each(|(_, contender)| contender.end())
    }
}

/// The folder of kept data, if `--keep` asks for one.
fn kept(arguments: &Arguments, row: &str, shape: &Shape) -> Option<PathBuf> {
    let name = format!("{row}-{}-{}", shape.items, shape.value_bytes);
    arguments.text("keep").map(|folder| PathBuf::from(folder).join(name))
}

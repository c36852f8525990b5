//! The protocol between a row and a contender, with one line of JSON for each message. A contender's only argument is its [`Setup`]. It
//! reads [`Command`]s from standard input, and writes a [`Report`] for each, or `{"error": …}`, to standard output.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::Failure;
use crate::latencies::Latencies;
use crate::process::Usage;
use crate::workload::{Distribution, Mix};

/// The setup of a contender.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The folder of its data, which it creates if it does not exist.
    pub data: PathBuf,
    /// The most memory that it may use.
    pub memory_bytes: u64,
    /// The part of the memory for items in DRAM, for contenders with such an option.
    pub tier_bytes: u64,
    /// The most flash that it may use, for contenders with such a limit.
    pub capacity_bytes: u64,
    /// Number of items already there.
    pub items: u64,
    pub value_bytes: u64,
    /// The incompressible percentage of each value.
    pub random_percent: u64,
    /// Values are JSON documents.
    pub json: bool,
    /// Whether a write must be durable before it is answered.
    pub sync: bool,
    /// zstd at level 1, or no compression.
    pub compress: bool,
    /// Worker threads of `tapetum serve`.
    pub threads: u64,
    /// Drive threads of the embedded store.
    pub drive_threads: u64,
    /// Compute units of the embedded store for each program of queries.
    pub compute_units: u64,
    /// Bytes for the cache of nodes, in addition to the memory. `None` unless the embedded store has the items in an ordered keyspace.
    pub ordered: Option<u64>,
    /// The size of a block device that `tapetum serve` has beside the items, exported to an idle client; 0 is none.
    pub export_bytes: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Store these items, none of which exists.
    Load {
        from: u64,
        to: u64,
    },
    /// Delete these items, all of which exist.
    Remove {
        from: u64,
        to: u64,
    },
    /// Wait until the background work of writes is done.
    Settle,
    Turn(Turn),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    Time(Duration),
    Operations(u64),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// A name for [`Mix::named`].
    pub mix: String,
    /// A name for [`Distribution::named`].
    pub distribution: String,
    /// One of the contender's ways to ask; each contender defines its own.
    pub api: String,
    pub threads: u64,
    /// Operations in flight in each thread.
    pub depth: u64,
    pub length: Length,
    /// Operations per second of all threads together.
    pub rate: Option<f64>,
    /// Uniform overwrites per second that run beside it, with as many additional threads.
    pub overwrites: Option<f64>,
    pub seed: u64,
}

impl Turn {
    /// At full speed, with uniformly drawn keys.
    pub fn uniform((mix, api): (&str, &str), (threads, depth): (u64, u64), length: Length, seed: u64) -> Turn {
        let (mix, distribution, api) = (mix.to_owned(), "uniform".to_owned(), api.to_owned());
        Turn { mix, distribution, api, threads, depth, length, rate: None, overwrites: None, seed }
    }

    /// Gets of keys from a zipfian distribution, with so many connections and so many gets at once on each, at full speed.
    pub fn zipfian_gets(ways: (u64, u64), time: Duration, seed: u64) -> Turn {
        Turn { distribution: "zipfian".into(), ..Turn::uniform(("c", "get"), ways, Length::Time(time), seed) }
    }

    pub fn mix(&self) -> Result<Mix, Failure> {
        Mix::named(&self.mix)
    }

    pub fn distribution(&self) -> Result<Distribution, Failure> {
        Distribution::named(&self.distribution)
    }

    /// The turn that runs beside this one.
    pub fn overwrites_beside(&self) -> Option<Turn> {
        let rate = self.overwrites?;
        let (mix, distribution) = ("write".to_owned(), "uniform".to_owned());
        Some(Turn { mix, distribution, rate: Some(rate), overwrites: None, seed: !self.seed, ..self.clone() })
    }

    pub fn operations_max(&self) -> u64 {
        match self.length {
            Length::Time(_) => u64::MAX,
            Length::Operations(count) => count,
        }
    }

    pub fn time_max(&self) -> Duration {
        match self.length {
            Length::Time(time) => time,
            Length::Operations(_) => Duration::MAX,
        }
    }
}

/// The results of a command, and the resources that the contender's processes used meanwhile.
pub struct Report {
    pub latencies: Latencies,
    pub seconds: f64,
    pub usage: Usage,
}

impl Report {
    pub fn operations_per_second(&self) -> f64 {
        self.latencies.operations() as f64 / self.seconds
    }

    pub fn cpu_us_per_operation(&self) -> f64 {
        self.usage.cpu_us as f64 / self.latencies.operations() as f64
    }

    /// The part of the drive's own threads.
    pub fn drive_cpu_us_per_operation(&self) -> f64 {
        self.usage.drive_cpu_us as f64 / self.latencies.operations() as f64
    }

    pub fn host_cpu_us_per_operation(&self) -> f64 {
        self.cpu_us_per_operation() - self.drive_cpu_us_per_operation()
    }
}

fn number(value: &Value, name: &str) -> Result<u64, Failure> {
    value[name].as_u64().ok_or_else(|| format!("{name} is no whole number in {value}").into())
}

fn text(value: &Value, name: &str) -> Result<String, Failure> {
    let text = value[name].as_str().ok_or_else(|| format!("{name} is no text in {value}"))?;
    Ok(text.to_owned())
}

fn truth(value: &Value, name: &str) -> Result<bool, Failure> {
    value[name].as_bool().ok_or_else(|| format!("{name} is neither true nor false in {value}").into())
}

impl Setup {
    pub fn to_json(&self) -> Value {
        json!({
            "data": self.data, "memory_bytes": self.memory_bytes, "tier_bytes": self.tier_bytes,
            "capacity_bytes": self.capacity_bytes, "items": self.items, "value_bytes": self.value_bytes, "random_percent": self.random_percent,
            "json": self.json, "sync": self.sync, "compress": self.compress, "threads": self.threads,
            "drive_threads": self.drive_threads, "compute_units": self.compute_units, "ordered": self.ordered,
            "export_bytes": self.export_bytes,
        })
    }

    pub fn from_json(value: &Value) -> Result<Setup, Failure> {
        Ok(Setup {
            data: text(value, "data")?.into(),
            memory_bytes: number(value, "memory_bytes")?,
            tier_bytes: number(value, "tier_bytes")?,
            capacity_bytes: number(value, "capacity_bytes")?,
            items: number(value, "items")?,
            value_bytes: number(value, "value_bytes")?,
            random_percent: number(value, "random_percent")?,
            json: truth(value, "json")?,
            sync: truth(value, "sync")?,
            compress: truth(value, "compress")?,
            threads: number(value, "threads")?,
            drive_threads: number(value, "drive_threads")?,
            compute_units: number(value, "compute_units")?,
            ordered: value["ordered"].as_u64(),
            export_bytes: number(value, "export_bytes")?,
        })
    }
}

impl Command {
    pub fn to_json(&self) -> Value {
        match self {
            Command::Load { from, to } => json!({ "do": "load", "from": from, "to": to }),
            Command::Remove { from, to } => json!({ "do": "remove", "from": from, "to": to }),
            Command::Settle => json!({ "do": "settle" }),
            Command::Turn(turn) => turn.to_json(),
        }
    }

    pub fn from_json(value: &Value) -> Result<Command, Failure> {
        Ok(match text(value, "do")?.as_str() {
            "load" => Command::Load { from: number(value, "from")?, to: number(value, "to")? },
            "remove" => Command::Remove { from: number(value, "from")?, to: number(value, "to")? },
            "settle" => Command::Settle,
            "turn" => Command::Turn(Turn::from_json(value)?),
            other => return Err(format!("there is no command {other}").into()),
        })
    }
}

impl Turn {
    fn to_json(&self) -> Value {
        let (length, unit) = match self.length {
            Length::Time(time) => (time.as_millis() as u64, "milliseconds"),
            Length::Operations(count) => (count, "operations"),
        };
        json!({
            "do": "turn", "mix": self.mix, "distribution": self.distribution, "api": self.api, "threads": self.threads,
            "depth": self.depth, unit: length, "rate": self.rate, "overwrites": self.overwrites,
            "seed": self.seed,
        })
    }

    fn from_json(value: &Value) -> Result<Turn, Failure> {
        let length = match value["milliseconds"].as_u64() {
            Some(milliseconds) => Length::Time(Duration::from_millis(milliseconds)),
            None => Length::Operations(number(value, "operations")?),
        };
        Ok(Turn {
            mix: text(value, "mix")?,
            distribution: text(value, "distribution")?,
            api: text(value, "api")?,
            threads: number(value, "threads")?.max(1),
            depth: number(value, "depth")?.max(1),
            length,
            rate: value["rate"].as_f64(),
            overwrites: value["overwrites"].as_f64(),
            seed: number(value, "seed")?,
        })
    }
}

impl Report {
    pub fn to_json(&self) -> Value {
        json!({ "seconds": self.seconds, "latencies": self.latencies.to_json(), "usage": self.usage.to_json() })
    }

    pub fn from_json(value: &Value) -> Result<Report, Failure> {
        Ok(Report {
            seconds: value["seconds"].as_f64().ok_or("a report has no seconds")?,
            latencies: Latencies::from_json(&value["latencies"])?,
            usage: Usage::from_json(&value["usage"])?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(length: Length, rate: Option<f64>) -> Turn {
        Turn { rate, overwrites: rate, ..Turn::uniform(("a", "get"), (2, 32), length, 9) }
    }

    #[test]
    fn commands_come_back_from_their_lines() {
        let timed = turn(Length::Time(Duration::from_millis(1500)), Some(1000.5));
        let counted = turn(Length::Operations(77), None);
        let (load, remove) = (Command::Load { from: 3, to: 9 }, Command::Remove { from: 4, to: 5 });
        for command in [load, remove, Command::Settle, Command::Turn(timed), Command::Turn(counted)] {
            let line = command.to_json().to_string();
            assert_eq!(Command::from_json(&serde_json::from_str(&line).unwrap()).unwrap(), command);
        }
        assert!(Command::from_json(&json!({"do": "dance"})).is_err());
        assert!(Command::from_json(&json!({"do": "load", "from": "x", "to": 1})).is_err());
    }

    #[test]
    fn a_setup_comes_back_from_its_argument() {
        let setup = Setup {
            data: "/x/y".into(),
            memory_bytes: 1,
            tier_bytes: 6,
            capacity_bytes: 2,
            items: 3,
            value_bytes: 4,
            random_percent: 5,
            json: true,
            sync: true,
            compress: false,
            threads: 7,
            drive_threads: 8,
            compute_units: 10,
            ordered: Some(9),
            export_bytes: 11,
        };
        assert_eq!(Setup::from_json(&setup.to_json()).unwrap(), setup);
        assert!(Setup::from_json(&json!({})).is_err());
    }
}

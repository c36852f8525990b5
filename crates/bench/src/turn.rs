//! The protocol between a row and a contender, with one line of JSON for each message. A contender's only argument is its [`Setup`]. It
//! reads [`Command`]s from standard input, and writes a [`Report`] for each, or `{"error": …}`, to standard output.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Failure;
use crate::latencies::Latencies;
use crate::process::Usage;
use crate::workload::{Distribution, Mix, Values};

/// The settings with which a contender starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// The embedded store's drive is a process of its own, which polls so often before it sleeps.
    #[serde(default)] // Trees of before have none.
    pub drive_process: Option<u32>,
    /// Compute units of the embedded store for each program of queries.
    pub compute_units: u64,
    /// Bytes for the cache of nodes, in addition to the memory. `None` unless the embedded store has the items in an ordered keyspace.
    pub ordered: Option<u64>,
    /// The size of a block device that `tapetum serve` has beside the items, exported to an idle client; 0 is none.
    pub export_bytes: u64,
}

impl Setup {
    /// The values that it asks for.
    pub fn values(&self) -> Values {
        let bytes = self.value_bytes as usize;
        if self.json { Values::of_json(bytes) } else { Values::new(bytes, self.random_percent) }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
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

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Length {
    #[serde(rename = "milliseconds", serialize_with = "write_milliseconds", deserialize_with = "read_milliseconds")]
    Time(Duration),
    Operations(u64),
}

fn write_milliseconds<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(time.as_millis() as u64)
}

fn read_milliseconds<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    u64::deserialize(from).map(Duration::from_millis)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    #[serde(flatten)]
    pub length: Length,
    /// Operations per second of all threads together.
    pub rate: Option<f64>,
    /// Uniform overwrites per second that run beside it, with as many additional threads.
    pub overwrites: Option<f64>,
    pub seed: u64,
}

impl Turn {
    /// At full speed, with uniformly drawn keys.
    pub fn uniform(mix: &str, api: &str, threads: u64, depth: u64, length: Length, seed: u64) -> Turn {
        let (mix, distribution, api) = (mix.to_owned(), "uniform".to_owned(), api.to_owned());
        let (threads, depth) = (threads.max(1), depth.max(1));
        Turn { mix, distribution, api, threads, depth, length, rate: None, overwrites: None, seed }
    }

    /// Gets of keys from a zipfian distribution, with so many connections and so many gets at once on each, at full speed.
    pub fn zipfian_gets(threads: u64, depth: u64, time: Duration, seed: u64) -> Turn {
        Turn { distribution: "zipfian".into(), ..Turn::uniform("c", "get", threads, depth, Length::Time(time), seed) }
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

/// The result of a command, and the resources that the contender's processes used meanwhile.
#[derive(Serialize, Deserialize)]
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn turn(length: Length, rate: Option<f64>) -> Turn {
        Turn { rate, overwrites: rate, ..Turn::uniform("a", "get", 2, 32, length, 9) }
    }

    #[test]
    fn commands_come_back_from_their_lines() {
        let timed = turn(Length::Time(Duration::from_millis(1500)), Some(1000.5));
        let counted = turn(Length::Operations(77), None);
        let (load, remove) = (Command::Load { from: 3, to: 9 }, Command::Remove { from: 4, to: 5 });
        for command in [load, remove, Command::Settle, Command::Turn(timed), Command::Turn(counted)] {
            let line = serde_json::to_string(&command).unwrap();
            assert_eq!(serde_json::from_str::<Command>(&line).unwrap(), command);
        }
        assert!(Command::deserialize(json!({"do": "dance"})).is_err());
        assert!(Command::deserialize(json!({"do": "load", "from": "x", "to": 1})).is_err());
        // As trees of earlier commits have it, whose contenders `cargo x bench trees` runs.
        let line = json!({
            "do": "turn", "mix": "a", "distribution": "uniform", "api": "get", "threads": 2, "depth": 32,
            "milliseconds": 5, "rate": null, "overwrites": null, "seed": 9,
        });
        let command = Command::Turn(turn(Length::Time(Duration::from_millis(5)), None));
        assert_eq!(serde_json::to_value(command).unwrap(), line);
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
            drive_process: Some(12),
            compute_units: 10,
            ordered: Some(9),
            export_bytes: 11,
        };
        assert_eq!(Setup::deserialize(serde_json::to_value(&setup).unwrap()).unwrap(), setup);
        assert!(Setup::deserialize(json!({})).is_err());
    }
}

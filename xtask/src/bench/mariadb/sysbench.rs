//! sysbench's turns, and what it says of them.

use std::path::Path;
use std::process::Command;

use crate::Failure;
use crate::nbd::said;

const TABLES: u64 = 4;

pub struct Sysbench<'a> {
    pub socket: &'a Path,
    pub rows: u64,
    pub threads: u64,
}

#[derive(Debug, PartialEq)]
pub struct SysbenchTurn {
    pub count: f64,
    pub seconds: f64,
    /// Transactions of each second.
    pub each_second: Vec<f64>,
    /// Latencies in milliseconds, in ascending order, each with how many there were.
    histogram: Vec<(f64, u64)>,
}

/// Whether there is one.
pub fn check() -> Result<(), Failure> {
    match Command::new("sysbench").arg("--version").output() {
        Ok(_) => Ok(()),
        Err(_) => Err("sysbench is missing: apt-get install sysbench".into()),
    }
}

impl Sysbench<'_> {
    fn command(&self, words: &[&str]) -> Result<String, Failure> {
        let mut command = Command::new("sysbench");
        command.args(["oltp_read_write", "--db-driver=mysql", "--mysql-user=root", "--rand-type=uniform"]);
        command.arg(format!("--mysql-socket={}", self.socket.display()));
        command.arg(format!("--tables={TABLES}")).arg(format!("--table-size={}", self.rows / TABLES));
        said(command.arg(format!("--threads={}", self.threads)).args(words))
    }

    pub fn fill(&self) -> Result<(), Failure> {
        self.command(&["prepare"]).map(drop)
    }

    pub fn run(&self, seconds: u64) -> Result<SysbenchTurn, Failure> {
        let time = format!("--time={seconds}");
        let text = self.command(&[&time, "--report-interval=1", "--histogram", "--percentile=99", "run"])?;
        SysbenchTurn::parse(&text, seconds as f64)
            .ok_or_else(|| format!("sysbench says something else:\n{text}").into())
    }
}

impl SysbenchTurn {
    /// Takes apart what it prints: `[ 1s ] thds: 16 tps: 231.7 …`, `0.270 |** 30`, `transactions: 6951 (231.5 per sec.)`.
    fn parse(text: &str, seconds: f64) -> Option<SysbenchTurn> {
        let word_behind = |line: &str, mark: &str| -> Option<f64> {
            line.split_once(mark)?.1.split_whitespace().next()?.parse().ok()
        };
        let count = text.lines().find_map(|line| word_behind(line, "transactions:"))?;
        let each_second = text.lines().filter_map(|line| word_behind(line, " tps:")).collect();
        let bar = |line: &str| -> Option<(f64, u64)> {
            let (value, rest) = line.split_once('|')?;
            Some((value.trim().parse().ok()?, rest.split_whitespace().last()?.parse().ok()?))
        };
        let histogram: Vec<_> = text.lines().filter_map(bar).collect();
        (count > 0.0 && !histogram.is_empty()).then_some(SysbenchTurn { count, seconds, each_second, histogram })
    }

    pub fn per_second(&self) -> f64 {
        self.count / self.seconds
    }

    /// The latency within which this part of the transactions was.
    pub fn quantile_ms(&self, quantile: f64) -> f64 {
        let all: u64 = self.histogram.iter().map(|(_, count)| count).sum();
        let (wanted, mut passed) = (quantile * all as f64, 0);
        let reached = self.histogram.iter().find(|(_, count)| {
            passed += count;
            passed as f64 >= wanted
        });
        reached.or(self.histogram.last()).map_or(0.0, |(value, _)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_what_sysbench_prints() {
        let text = "[ 1s ] thds: 16 tps: 231.70 qps: 4704.40 (r/w/o: 3313.86/911.10/479.44) lat (ms,99%): 104.84 err/s: 0.00 reconn/s: 0.00
[ 2s ] thds: 16 tps: 200.00 qps: 4704.40 (r/w/o: 3313.86/911.10/479.44) lat (ms,99%): 104.84 err/s: 0.00 reconn/s: 0.00
Latency histogram (values are in milliseconds)
       value  ------------- distribution ------------- count
      21.109 |**                                       990
      90.100 |                                         9
     204.109 |                                         1
    transactions:                        1000   (500.00 per sec.)
";
        let turn = SysbenchTurn::parse(text, 2.0).unwrap();
        assert_eq!((turn.per_second(), &turn.each_second[..]), (500.0, &[231.7, 200.0][..]));
        assert_eq!([0.5, 0.99, 0.999, 1.0].map(|quantile| turn.quantile_ms(quantile)), [21.109, 21.109, 90.1, 204.109]);
        assert_eq!(SysbenchTurn::parse("FATAL: no socket", 2.0), None);
    }
}

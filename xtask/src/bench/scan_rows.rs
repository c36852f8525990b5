//! Rows per second that one core parses and filters: a condition program over batches of rows, in a fixed format and in JSON.

#![allow(clippy::disallowed_methods)] // It measures real time.

use std::time::{Duration, Instant};

use tapetum_bench::queries::keep_below;
use tapetum_bench::random::Random;
use tapetum_kernels::scan::{BATCH_ROWS, Query, QueryRun, RowBatch};

use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;

/// Approximate bytes of a row.
const ROW_BYTES: usize = 100;
const KEY_BYTES: usize = 8;

/// A format, and a function that makes its rows.
struct RowKind {
    name: &'static str,
    format: &'static str,
    value: fn(u64, &mut Random) -> Vec<u8>,
}

const KINDS: [RowKind; 2] = [
    RowKind {
        name: "fixed",
        format: "key: id u64be; value: number u64le, year u16le, rest bytes",
        value: |number, random| {
            let mut value = random.bytes(ROW_BYTES - KEY_BYTES);
            value[..8].copy_from_slice(&number.to_le_bytes());
            value
        },
    },
    RowKind {
        name: "JSON",
        format: "key: id u64be; value: number json $.number int, year json $.year int",
        value: |number, random| {
            let text = format!(r#"{{"title":"the {number}th","year":{},"number":{number},"#, 1990 + random.below(30));
            let rest = (ROW_BYTES - KEY_BYTES).saturating_sub(text.len() + 11);
            format!(r#"{text}"rest":"{}"}}"#, "x".repeat(rest)).into_bytes()
        },
    },
];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let rounds = arguments.number("rounds", 9)?;
    let time = arguments.time(Duration::from_millis(300));
    arguments.finish()?;
    let about = format!("rows of {ROW_BYTES} bytes, of which 1 % are kept, on one core");
    let mut outcome = Outcome::new(arguments, "scan-rows", about);
    for kind in &KINDS {
        // The ids of one row in a hundred.
        let (batch, query) = (batch(kind), keep_below(kind.format, BATCH_ROWS as u64 / 100, vec![4])?);
        let rates: Vec<f64> = (0..rounds).map(|_| rate(&batch, &query, time)).collect::<Result<_, Failure>>()?;
        outcome.hold(format!("{}: rows a second", kind.name), Spread::of(rates), Reach::Reported);
    }
    outcome.end()
}

fn batch(kind: &RowKind) -> RowBatch {
    let (mut batch, mut random) = (RowBatch::new(), Random::new(3));
    for number in 0..BATCH_ROWS as u64 {
        batch.push(&number.to_be_bytes(), &(kind.value)(number, &mut random));
    }
    batch
}

fn rate(batch: &RowBatch, query: &Query, time: Duration) -> Result<f64, Failure> {
    let (mut run, mut out, begun) = (QueryRun::new(query), Vec::new(), Instant::now());
    let mut rows = 0;
    while begun.elapsed() < time {
        out.clear();
        run.run(std::hint::black_box(batch), &mut out).map_err(|error| format!("{error:?}"))?;
        rows += batch.len();
    }
    Ok(rows as f64 / begun.elapsed().as_secs_f64())
}

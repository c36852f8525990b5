//! Measures how much compression of small values would save in nodes, value by value and a whole node at once. To be
//! run by hand:
//! `cargo test -p tapetum-kernels --release -- --ignored --nocapture what_compression_would_save`.
//! `docs/decisions/node-compression.md` has the results.

// The measurement asserts nothing about time.
#![allow(clippy::disallowed_methods)]

use super::NODE_BYTES;
use super::testing::Numbers;
use crate::codec::{Compressor, Decompressor};
use crate::record::{Codec, Header, Record};
use std::hint::black_box;
use std::time::Instant;

const NAMES: [&str; 12] =
    ["anna", "boris", "carla", "dmitri", "elif", "farid", "greta", "hugo", "ines", "jonas", "kenji", "lena"];
const WORDS: [&str; 16] = [
    "the", "order", "of", "a", "value", "is", "delayed", "payment", "ready", "until", "monday", "and", "customer",
    "was", "told", "again",
];
const ROUNDS: u32 = 200;

/// An item of a kind, as services keep them.
fn value(kind: &str, numbers: &mut Numbers, at: usize) -> Vec<u8> {
    let name = NAMES[numbers.below(NAMES.len())];
    match kind {
        "session, JSON, about 170 bytes" => format!(
            "{{\"user\":\"{name}{}\",\"created\":\"2026-11-{:02}T{:02}:{:02}:{:02}Z\",\"ip\":\"10.{}.{}.{}\",\"roles\":[\"reader\",\"{}\"],\"active\":true,\"visits\":{}}}",
            numbers.below(100_000), 1 + numbers.below(28), numbers.below(24), numbers.below(60), numbers.below(60),
            numbers.below(256), numbers.below(256), numbers.below(256), if at.is_multiple_of(3) { "editor" } else { "guest" }, numbers.below(10_000)
        )
        .into_bytes(),
        "text, about 100 bytes" => {
            let words: Vec<&str> = (0..18).map(|_| WORDS[numbers.below(WORDS.len())]).collect();
            words.join(" ").into_bytes()
        }
        "numbers, 64 bytes" => {
            let mut bytes = Vec::new();
            bytes.extend((1_764_000_000_000 + at as u64 * 977).to_le_bytes());
            (0..14).for_each(|_| bytes.extend((numbers.below(5000) as u32).to_le_bytes()));
            bytes
        }
        "page of JSON, about 1 KiB" => {
            let items: Vec<String> = (0..9)
                .map(|item| {
                    format!(
                        "{{\"sku\":\"{:08x}\",\"title\":\"{} {} {}\",\"price\":{}.{:02},\"stock\":{},\"row\":{item}}}",
                        numbers.below(1 << 30), WORDS[numbers.below(16)], WORDS[numbers.below(16)], name,
                        numbers.below(200), numbers.below(100), numbers.below(40)
                    )
                })
                .collect();
            items.join(",").into_bytes()
        }
        _ => (0..100).map(|_| numbers.below(256) as u8).collect(),
    }
}

/// Microseconds that `work` takes, the best of [`ROUNDS`] rounds.
fn best_us(mut work: impl FnMut()) -> f64 {
    let rounds = (0..ROUNDS).map(|_| {
        let began = Instant::now();
        work();
        began.elapsed().as_nanos() as f64 / 1000.0
    });
    rounds.fold(f64::INFINITY, f64::min)
}

#[test]
#[ignore = "a measurement, not a check"]
fn what_compression_would_save() {
    let kinds = [
        "session, JSON, about 170 bytes",
        "text, about 100 bytes",
        "numbers, 64 bytes",
        "page of JSON, about 1 KiB",
        "random, 100 bytes",
    ];
    let (mut compressor, mut decompressor) = (Compressor::new().unwrap(), Decompressor::new().unwrap());
    for kind in kinds {
        let (mut numbers, mut heap, mut alone, mut items) = (Numbers::new(7), Vec::new(), 0, 0);
        // The heap holds the records of several nodes, as they lie there.
        while heap.len() < 4 * NODE_BYTES {
            let (key, value) = (format!("user:{items:010}"), value(kind, &mut numbers, items));
            let record = |value: &[u8], codec| {
                let header =
                    Header { codec, raw_bytes: value.len() as u32, ..Header::value(1 << 40, key.len(), value.len()) };
                let mut bytes = vec![0; header.record_bytes()];
                Record { header, key: key.as_bytes(), stored: value }.encode(&mut bytes);
                bytes
            };
            let (codec, stored) = compressor.compress(&value);
            alone += record(stored, codec).len();
            heap.extend(record(&value, Codec::Raw));
            items += 1;
        }
        let per_item = heap.len() as f64 / items as f64;
        print!("{kind}: {per_item:.0} bytes a record; values alone {:.2}", heap.len() as f64 / alone as f64);
        for nodes in [1, 2, 4] {
            let bytes = &heap[..nodes * NODE_BYTES - 400];
            let (codec, stored) = compressor.compress(bytes);
            let (is_raw, stored) = (codec == Codec::Raw, stored.to_vec());
            let ratio = bytes.len() as f64 / stored.len() as f64;
            let made = best_us(|| {
                black_box(compressor.compress(black_box(bytes)));
            });
            let mut out = vec![0; bytes.len()];
            let read = match is_raw {
                true => 0.0,
                false => best_us(|| decompressor.decompress(black_box(&stored), &mut out).unwrap()),
            };
            print!("; {} KiB together {ratio:.2} ({made:.1} us, back {read:.1} us)", 4 * nodes);
        }
        println!();
    }
}

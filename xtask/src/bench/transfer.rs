//! How a result gets to the host (nKV's figure 8): in bulk; record by record, with a wake-up for each; or by sending all records to the
//! host, which filters them itself. Time and bytes across, by the share of records kept.

use tapetum_bench::filter::{KEPT, KEPT_BYTES, RETURNED_BYTES, SENT_BYTES, WAKE_UPS};
use tapetum_bench::turn::{Length, Report};

use super::arena::{Arena, Entrant, Load};
use super::peers::ORDERED;
use super::shape::{Room, Shape};
use crate::Failure;
use crate::arguments::Arguments;
use crate::results::chart::{Chart, Line, Scale};
use crate::results::outcome::{Outcome, Reach};
use crate::results::picture::Picture;
use crate::results::series::Series;
use crate::results::spread::Spread;

const VALUE_BYTES: u64 = 100;
/// The mix, and the percentage of the items that it keeps.
const SELECTIVITIES: [(&str, f64); 4] =
    [("filter-1", 0.1), ("filter-10", 1.0), ("filter-100", 10.0), ("filter-1000", 100.0)];
/// The contender's way to ask, and its name in the picture.
const WAYS: [(&str, &str); 3] = [("query", "bulk"), ("query-by-record", "by record"), ("query-host", "host")];
const KINDS: [(&str, &str); 2] = [("tapetum", "hashed"), (ORDERED, "ordered")];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shape = Shape::parse(arguments, 300_000, VALUE_BYTES, Room::Nodes)?;
    let rounds = arguments.number("rounds", 5)?;
    let names = KINDS.map(|(name, _)| name);
    let mut arena = Arena::open(arguments, "transfer", &shape, &names, &names)?;
    let about = format!("scans of {} items of {} bytes", shape.items, shape.value_bytes);
    let mut outcome = Outcome::new(arguments, "transfer", about.clone());
    arena.load(0)?;
    arena.start_all(false)?;
    let kinds: Vec<_> = KINDS.into_iter().filter(|(name, _)| arena.has(name)).collect();
    let ways = kinds.iter().flat_map(|(name, kind)| WAYS.map(|(api, way)| (*name, api, format!("{kind}, {way}"))));
    let ways: Vec<(&str, &str, String)> = ways.collect();
    let entrants: Vec<Entrant> = ways.iter().map(|(name, api, _)| Entrant::new(name, api, 1, 1)).collect();
    let mut found = Vec::new();
    for (mix, percent) in SELECTIVITIES {
        let load = Load { length: Length::Operations(1), ..Load::of(mix) };
        found.push((percent, arena.rounds(&entrants, &load, rounds)?));
    }
    arena.end_all()?;
    let labels: Vec<&str> = ways.iter().map(|(_, _, label)| &label[..]).collect();
    outcome.picture(picture(&about, &labels, &found));
    tell(&mut outcome, &labels, found);
    outcome.end()
}

fn seconds(report: &Report) -> f64 {
    report.seconds / report.latencies.operations() as f64
}

/// Bytes across of one scan, in both directions.
fn bytes_across(report: &Report) -> f64 {
    let bytes = report.latencies.counted(RETURNED_BYTES) + report.latencies.counted(SENT_BYTES);
    bytes / report.latencies.operations() as f64
}

/// Bytes of keys and requested fields, of one scan.
fn result_bytes(report: &Report) -> f64 {
    report.latencies.counted(KEPT) * KEPT_BYTES as f64 / report.latencies.operations() as f64
}

fn picture(about: &str, labels: &[&str], found: &[(f64, Vec<Series>)]) -> Picture {
    let lines = |figure: fn(&Report) -> f64| -> Vec<Line> {
        let line = |(place, label): (usize, &&str)| {
            let points = found.iter().map(|(percent, series)| (*percent, series[place].spread(figure)));
            Line::new(*label, points)
        };
        labels.iter().enumerate().map(line).collect()
    };
    let chart =
        |title: &str, y_label, lines| Chart::new(title, ["% of the items kept", y_label], Scale::Logarithmic, lines);
    let titles = ["Time", "Bytes between drive and host"].map(|what| format!("{what}: {about}"));
    let of_result = found.iter().filter_map(|(percent, series)| Some((*percent, series.first()?)));
    let points = of_result.map(|(percent, series)| (percent, series.spread(result_bytes)));
    let mut across = lines(bytes_across);
    across.push(Line::new("the result alone", points));
    Picture::new("transfer", vec![chart(&titles[0], "seconds", lines(seconds)), chart(&titles[1], "bytes", across)])
}

fn tell(outcome: &mut Outcome, labels: &[&str], found: Vec<(f64, Vec<Series>)>) {
    outcome.columns(&["kept", "seconds", "MB across", "wake-ups", "CPU seconds"]);
    let each = |series: &Series, figure: &dyn Fn(&Report) -> f64| {
        Spread::of(series.reports.iter().map(|report| figure(report) / report.latencies.operations() as f64))
    };
    for (percent, series) in &found {
        for (label, series) in labels.iter().zip(series) {
            let across = series.spread(|report| bytes_across(report) / 1e6);
            let wake_ups = each(series, &|report| report.latencies.counted(WAKE_UPS));
            let cpu = each(series, &|report| report.usage.cpu_us as f64 / 1e6);
            outcome.line(format!("{percent} %: {label}"), vec![series.spread(seconds), across, wake_ups, cpu]);
        }
    }
    for (percent, series) in &found {
        for (labels, series) in labels.chunks(WAYS.len()).zip(series.chunks(WAYS.len())) {
            for (label, other) in labels.iter().zip(series).skip(1) {
                let time = other.ratio(&series[0], seconds);
                outcome.hold(format!("{percent} %, {label}: time ÷ that in bulk"), time, Reach::Reported);
                let bytes = other.ratio(&series[0], bytes_across);
                outcome.hold(format!("{percent} %, {label}: bytes across ÷ those in bulk"), bytes, Reach::Reported);
            }
        }
    }
}

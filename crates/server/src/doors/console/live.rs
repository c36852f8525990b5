//! The figures of a server as the console shows them. Pure, but for the figures, which are of this moment.

#![allow(clippy::disallowed_methods)] // The server is above the simulator: its clock is the system's.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tapetum::{Keyspace, KeyspaceWrites, Stats};
use tapetum_service::escapes;

use crate::net::listen::Address;
use crate::stats::latencies::{self, Latencies, TimedRequest};
use crate::stats::{Figure, FigureKind, Figures};

/// A door that is open: its name, and its address.
pub type OpenDoor = (&'static str, Address);

const GETS: [TimedRequest; 2] = [TimedRequest::GetFromMemory, TimedRequest::GetFromFlash];

/// All figures, as `/api/figures` answers them.
pub fn figures(figures: &Figures, doors: &[OpenDoor]) -> Value {
    let now_ms = unix_ms(SystemTime::now());
    let general = figures.general((now_ms / 1000) as u32);
    let store = (figures.store)();
    let sum = |requests: &[TimedRequest]| histogram(&latencies::sum(&figures.latencies, requests));
    let writes = (figures.keyspace_writes)();
    let keyspace = |(keyspace, items): &(Keyspace, u64)| {
        let written = writes.iter().find(|(id, _)| *id == keyspace.id).map(|(_, writes)| written_bytes(writes));
        json!({ "name": keyspace.name, "items": items, "written_bytes": written })
    };
    let held_bytes = (figures.requests_held_bytes)() as u64;
    json!({
        "unix_ms": now_ms,
        "started_unix_ms": u64::from(figures.started_unix_seconds) * 1000,
        "doors": doors.iter().map(|(door, address)| json!({ "door": door, "address": address.to_string() })).collect::<Vec<_>>(),
        "figures": general.iter().map(by_name).collect::<Map<_, _>>(),
        "latencies": { "get": sum(&GETS), "get_from_flash": sum(&GETS[1..]), "set": sum(&[TimedRequest::Set]) },
        "keyspaces": (figures.keyspace_items)().iter().map(keyspace).collect::<Vec<_>>(),
        "stages": stages(figures),
        "applications": applications(figures),
        "memory": parts(&memory(&store, held_bytes)),
        "flash": parts(&flash(&store)),
    })
}

/// Requests that took long, the newest first.
pub fn slow(figures: &Figures) -> Value {
    let keyspaces = (figures.keyspace_items)();
    let slow = figures.slow.newest().into_iter().map(|request| {
        let keyspace = keyspaces.iter().find(|(keyspace, _)| keyspace.id == request.keyspace);
        json!({
            "unix_ms": unix_ms(request.at),
            "took_us": request.took.as_micros() as u64,
            "operation": if request.request == TimedRequest::Set { "set" } else { "get" },
            "keyspace": keyspace.map(|(keyspace, _)| &keyspace.name),
            "key": escapes::escaped(&request.key),
        })
    });
    json!({ "slow": slow.collect::<Vec<_>>() })
}

fn unix_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn written_bytes(writes: &KeyspaceWrites) -> u64 {
    writes.flushed_bytes + writes.collected_bytes
}

/// A figure as a number, unless it is a text.
fn by_name(figure: &Figure) -> (String, Value) {
    let text = || Value::from(&figure.value[..]);
    let value = match figure.kind {
        FigureKind::Text | FigureKind::Build => text(),
        FigureKind::Counter | FigureKind::Gauge => serde_json::from_str(&figure.value).unwrap_or_else(|_| text()),
    };
    (figure.name.into(), value)
}

fn histogram(latencies: &Latencies) -> Value {
    let (bounds, counts): (Vec<Option<u64>>, Vec<u64>) = latencies.buckets().unzip();
    let bounds: Vec<u64> = bounds.into_iter().flatten().collect();
    json!({ "bounds_us": bounds, "counts": counts, "total_us": latencies.total_us() })
}

fn stages(figures: &Figures) -> Vec<Value> {
    let stage = |stage: tapetum_drive::engine::StageSnapshot| {
        json!({
            "name": stage.name, "tasks": stage.tasks, "bytes_in": stage.bytes_in, "bytes_out": stage.bytes_out,
            "unit_us": stage.unit_us, "failures": stage.failures, "waits": stage.waits,
        })
    };
    (figures.stages)().into_iter().map(stage).collect()
}

fn applications(figures: &Figures) -> Vec<Value> {
    let application = |of: tapetum_drive::engine::ApplicationSnapshot| json!({ "name": of.name, "weight": of.weight, "pipelines": of.pipelines, "tasks": of.tasks, "unit_us": of.unit_us });
    (figures.applications)().into_iter().map(application).collect()
}

fn parts(of: &[(&str, u64)]) -> Vec<Value> {
    of.iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes })).collect()
}

/// The parts that fill the memory of the store and of its doors.
fn memory(store: &Stats, requests_held_bytes: u64) -> Vec<(&'static str, u64)> {
    let mut parts = vec![
        ("index", store.index_bytes),
        ("key tables", store.key_tables_bytes),
        ("items in DRAM", store.tier_bytes),
        ("nodes", store.node_cache_bytes),
        ("freezes", store.freeze_memory_bytes),
    ];
    let known_bytes: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
    parts.push(("buffers and the rest", store.memory_used_bytes.saturating_sub(known_bytes)));
    parts.push(("requests", requests_held_bytes));
    parts.push(("free", store.memory_limit_bytes.saturating_sub(store.memory_used_bytes)));
    parts
}

/// The parts that fill flash. The drive map tells more of them.
fn flash(store: &Stats) -> Vec<(&'static str, u64)> {
    let free_bytes = store.flash_limit_bytes.saturating_sub(store.flash_used_bytes);
    let rest_bytes = store.flash_used_bytes.saturating_sub(store.large_bytes);
    vec![("records, nodes, keys and log", rest_bytes), ("large values", store.large_bytes), ("free", free_bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tapetum::KeyspaceId;

    #[test]
    fn figures_are_numbers_and_histograms_have_all_requests() {
        let of = Figures::default();
        of.latencies[0].add(TimedRequest::GetFromFlash, 2, Duration::from_micros(9));
        of.latencies[0].add(TimedRequest::GetFromMemory, 1, Duration::from_secs(3600));
        let told = figures(&of, &[("console", Address::Tcp("127.0.0.1:9180".into()))]);
        assert_eq!(told["figures"]["cmd_get"], 0);
        assert!(told["figures"]["version"].is_string() && told["figures"]["rusage_user"].is_number());
        assert_eq!(told["doors"][0]["address"], "127.0.0.1:9180");
        let (bounds, counts) = (&told["latencies"]["get"]["bounds_us"], &told["latencies"]["get"]["counts"]);
        let (bounds, counts) = (bounds.as_array().unwrap(), counts.as_array().unwrap());
        assert_eq!(counts.len(), bounds.len() + 1);
        assert_eq!((&bounds[0], &counts[1], counts.last()), (&json!(8), &json!(2), Some(&json!(1))));
    }

    #[test]
    fn a_slow_request_is_told_with_its_key_escaped() {
        let of = Figures::default();
        of.slow.note(TimedRequest::Set, Duration::from_millis(20), KeyspaceId::DEFAULT, b"<\n>");
        let told = slow(&of);
        assert_eq!((&told["slow"][0]["operation"], &told["slow"][0]["key"]), (&json!("set"), &json!("<\\n>")));
        assert_eq!(told["slow"][0]["took_us"], 20_000);
    }
}

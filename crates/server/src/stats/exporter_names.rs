//! The figures under the names that memcached's exporter for Prometheus gives them, so that dashboards made for it show a store like any
//! memcached: `memcached_*` beside our own `tapetum_*`. No state.

use std::fmt::Write as _;

use tapetum::SlabClass;

use crate::stats::Figure;
use crate::stats::exposition::{family, label};
use crate::stats::slab_stats::{self, ClassFigure};

/// A figure of `stats`, the exporter's name for it, and its type. The type is the exporter's, unless Prometheus would then require the name
/// to end in `_total`.
const NAMES: [(&str, &str, &str); 35] = [
    ("uptime", "uptime_seconds", "gauge"),
    ("time", "time_seconds", "gauge"),
    ("rusage_user", "process_user_cpu_seconds_total", "counter"),
    ("rusage_system", "process_system_cpu_seconds_total", "counter"),
    ("max_connections", "max_connections", "gauge"),
    ("curr_connections", "current_connections", "gauge"),
    ("total_connections", "connections_total", "counter"),
    ("rejected_connections", "connections_rejected_total", "counter"),
    ("accepting_conns", "accepting_connections", "gauge"),
    ("listen_disabled_num", "connections_listener_disabled_total", "counter"),
    ("conn_yields", "connections_yielded_total", "counter"),
    ("bytes_read", "read_bytes_total", "counter"),
    ("bytes_written", "written_bytes_total", "counter"),
    ("bytes", "current_bytes", "gauge"),
    ("limit_maxbytes", "limit_bytes", "gauge"),
    ("curr_items", "current_items", "gauge"),
    ("total_items", "items_total", "counter"),
    ("evictions", "items_evicted_total", "counter"),
    ("reclaimed", "items_reclaimed_total", "counter"),
    ("store_too_large", "item_too_large_total", "counter"),
    ("store_no_memory", "item_no_memory_total", "counter"),
    ("lru_crawler_starts", "lru_crawler_starts_total", "counter"),
    ("crawler_items_checked", "lru_crawler_items_checked_total", "counter"),
    ("crawler_reclaimed", "lru_crawler_reclaimed_total", "counter"),
    ("moves_to_warm", "lru_crawler_moves_to_warm_total", "counter"),
    ("moves_within_lru", "lru_crawler_moves_within_lru_total", "counter"),
    ("total_malloced", "malloced_bytes", "gauge"),
    ("extstore_limit_maxbytes", "extstore_bytes_limit", "gauge"),
    ("extstore_bytes_used", "extstore_bytes_used", "gauge"),
    ("extstore_bytes_written", "extstore_bytes_written_total", "counter"),
    ("extstore_bytes_read", "extstore_bytes_read_total", "counter"),
    ("extstore_objects_used", "extstore_objects_used", "gauge"),
    ("extstore_objects_read", "extstore_objects_read_total", "counter"),
    ("extstore_objects_evicted", "extstore_objects_evicted_total", "counter"),
    ("extstore_page_evictions", "extstore_pages_evicted_total", "counter"),
];

/// Figures of `stats` that the exporter has under one name, with command and status as labels.
const COMMANDS: [(&str, &str, &str); 14] = [
    ("get_hits", "get", "hit"),
    ("get_misses", "get", "miss"),
    ("delete_hits", "delete", "hit"),
    ("delete_misses", "delete", "miss"),
    ("incr_hits", "incr", "hit"),
    ("incr_misses", "incr", "miss"),
    ("decr_hits", "decr", "hit"),
    ("decr_misses", "decr", "miss"),
    ("cas_hits", "cas", "hit"),
    ("cas_misses", "cas", "miss"),
    ("cas_badval", "cas", "badval"),
    ("touch_hits", "touch", "hit"),
    ("touch_misses", "touch", "miss"),
    ("cmd_flush", "flush", "hit"),
];

/// Included in `cmd_set`; the exporter subtracts them.
const CAS: [&str; 3] = ["cas_hits", "cas_misses", "cas_badval"];

/// Appends the families in Prometheus' text format.
pub fn append(out: &mut String, figures: &[Figure], classes: &[SlabClass]) {
    let figure = |name: &str| figures.iter().find(|figure| figure.name == name);
    family(out, "memcached_up", "gauge", "Whether the server answers");
    out.push_str("memcached_up 1\n");
    // Writing to a string cannot fail.
    if let Some(version) = figure("version") {
        family(out, "memcached_version", "gauge", version.help);
        let _ = writeln!(out, "memcached_version{{version={}}} 1", label(&version.value));
    }
    for (name, exported, kind) in NAMES {
        if let Some(Figure { help, value, .. }) = figure(name) {
            family(out, &format!("memcached_{exported}"), kind, help);
            let _ = writeln!(out, "memcached_{exported} {value}");
        }
    }
    family(out, "memcached_commands_total", "counter", "Commands by what became of them");
    for (name, command, status) in COMMANDS {
        if let Some(Figure { value, .. }) = figure(name) {
            let _ = writeln!(out, "memcached_commands_total{{command=\"{command}\",status=\"{status}\"}} {value}");
        }
    }
    let count = |name| figure(name).and_then(|figure| figure.value.parse::<u64>().ok()).unwrap_or(0);
    let sets = count("cmd_set").saturating_sub(CAS.map(count).iter().sum());
    let _ = writeln!(out, "memcached_commands_total{{command=\"set\",status=\"hit\"}} {sets}");
    for ClassFigure { in_exporter, kind, help, value, .. } in slab_stats::OF_SLABS.iter().chain(&slab_stats::OF_ITEMS) {
        family(out, &format!("memcached_slab_{in_exporter}"), kind, help);
        for (number, class) in slab_stats::numbered(classes) {
            let _ = writeln!(out, "memcached_slab_{in_exporter}{{slab=\"{number}\"}} {}", value(class));
        }
    }
    family(
        out,
        "memcached_slab_commands_total",
        "counter",
        "Of items in DRAM: gets that found one, and (as set) those that came in",
    );
    for (number, class) in slab_stats::numbered(classes) {
        for (_, [command, status], value) in slab_stats::COMMANDS {
            let labels = format!("command=\"{command}\",slab=\"{number}\",status=\"{status}\"");
            let _ = writeln!(out, "memcached_slab_commands_total{{{labels}}} {}", value(class));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Figures, count};

    #[test]
    fn every_name_has_a_figure_behind_it() {
        let mut out = String::new();
        append(&mut out, &Figures::default().general(7), &[]);
        for (figure, exported, _) in NAMES {
            assert!(out.contains(&format!("\nmemcached_{exported} ")), "{figure}");
        }
        for (figure, command, status) in COMMANDS {
            assert!(out.contains(&format!("{{command=\"{command}\",status=\"{status}\"}} 0\n")), "{figure}");
        }
    }

    #[test]
    fn a_cas_is_no_set() {
        let (figures, mut out) = (Figures::default(), String::new());
        count(&figures.counters[0].cmd_set, 10);
        count(&figures.counters[0].cas_hits, 3);
        count(&figures.counters[0].cas_misses, 2);
        count(&figures.counters[0].cas_badval, 1);
        append(&mut out, &figures.general(7), &[]);
        assert!(out.contains("\nmemcached_commands_total{command=\"set\",status=\"hit\"} 4\n"));
    }
}

//! `stats settings`: memcached's names where they mean something here.

use std::path::Path;

use tapetum_access::tls::TlsFiles;
use tapetum_service::escapes;

use super::door::MemcachedOptions;
use super::udp::Terminal;
use crate::doors::options::Options;
use crate::net::listen::{Address, Listener};
use crate::stats::observers::WATCHER_BYTES_MAX;

/// Names and values.
pub fn settings(
    options: &Options,
    listeners: &[Listener],
    of_each: &[MemcachedOptions],
    udp: Option<&Terminal>,
) -> Vec<(&'static str, String)> {
    let may_flush = of_each.iter().all(|options| options.may_flush);
    let (mut port, mut inter, mut socket) = (0, String::from("NULL"), String::from("NULL"));
    for listener in listeners {
        match listener.address() {
            Address::Unix(path) => socket = path.display().to_string(),
            Address::Tcp(text) | Address::Plain(text) => {
                let (host, number) = text.rsplit_once(':').unwrap_or((&text, "0"));
                inter = if port == 0 { host.to_string() } else { format!("{inter},{host}") };
                port = number.parse().unwrap_or(0u16);
            }
        }
    }
    let mut lines = vec![
        ("maxconns", options.limits.connections.to_string()),
        ("tcpport", port.to_string()),
        ("udpport", udp.map_or(0, |udp| udp.addresses[0].port()).to_string()),
        ("inter", inter),
        ("verbosity", "0".into()),
        ("domain_socket", socket),
        ("umask", "700".into()),
        ("num_threads", options.threads.to_string()),
        ("cas_enabled", "yes".into()),
        ("binding_protocol", "auto-negotiate".into()),
        ("auth_enabled_sasl", yes_or_no(options.access.gate.is_some())),
        ("auth_enabled_ascii", yes_or_no(options.access.gate.is_some())),
        ("item_size_max", options.limits.item_bytes_max.to_string()),
        ("maxconns_fast", "yes".into()),
        ("tcp_backlog", options.limits.backlog.to_string()),
        ("idle_timeout", options.limits.idle_seconds.to_string()),
        ("num_threads_per_udp", options.threads.to_string()),
        ("shutdown_command", "no".into()),
        ("stat_key_prefix", ":".into()),
        ("watcher_logbuf_size", WATCHER_BYTES_MAX.to_string()),
        ("track_sizes", "no".into()),
        ("dump_enabled", "yes".into()),
        ("lru_crawler", "no".into()),
        ("temp_lru", "no".into()),
        ("ssl_enabled", yes_or_no(options.access.tls.is_some())),
        ("hash_algorithm", "siphash13".into()),
        ("flush_enabled", if may_flush { "yes" } else { "no" }.into()),
        ("in_flight_bytes_max", options.limits.in_flight_bytes.to_string()),
    ];
    if let Some(tls) = &options.access.tls {
        let TlsFiles { chain, key, authorities, client_certificates, version_min } = tls.files();
        let path = |path: &Path| escapes::word(&path.display().to_string());
        lines.extend([
            ("ssl_chain_cert", path(chain)),
            ("ssl_key", path(key)),
            ("ssl_ca_cert", authorities.as_deref().map_or("NULL".into(), path)),
            ("ssl_verify_mode", format!("{client_certificates:?}").to_lowercase()),
            ("ssl_min_version", format!("{version_min:?}").to_lowercase()),
        ]);
    }
    lines.extend(options.settings.iter().cloned());
    lines
}

fn yes_or_no(is_so: bool) -> String {
    if is_so { "yes" } else { "no" }.into()
}

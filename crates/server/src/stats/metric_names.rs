//! The names that figures of `stats` have at `/metrics`: the units of Prometheus, which come last in a name, and labels in place of parts of
//! names. `stats` keeps memcached's names; what differs is here alone. No state.

/// A figure at `/metrics`, without the `tapetum_` in front and the `_total` behind.
#[derive(Debug, PartialEq)]
pub struct MetricName {
    pub family: String,
    pub labels: Vec<(&'static str, String)>,
    /// The help of the family, where it has several figures.
    pub help: Option<&'static str>,
    /// The figure's units in one unit of Prometheus'.
    pub divisor: f64,
}

/// Figures whose names lack their unit, or have it in another place. Units are changed afterwards.
const RENAMED: [(&str, &str); 21] = [
    ("uptime", "uptime_seconds"),
    ("time", "time_seconds"),
    ("pointer_size", "pointer_size_bits"),
    ("rusage_user", "rusage_user_seconds"),
    ("rusage_system", "rusage_system_seconds"),
    ("cpu_host", "cpu_host_seconds"),
    ("cpu_drive", "cpu_drive_seconds"),
    ("total_connections", "connections"),
    ("total_items", "items"),
    ("listen_disabled_num", "listen_disabled"),
    ("time_in_listen_disabled_us", "listen_disabled_us"),
    ("bytes", "current_bytes"),
    ("limit_maxbytes", "limit_bytes"),
    ("bytes_read", "read_bytes"),
    ("bytes_written", "written_bytes"),
    ("total_malloced", "malloced_bytes"),
    ("extstore_limit_maxbytes", "extstore_limit_bytes"),
    ("extstore_bytes_used", "extstore_used_bytes"),
    ("extstore_bytes_written", "extstore_written_bytes"),
    ("extstore_bytes_read", "extstore_read_bytes"),
    ("backup_moment", "backup_timestamp_seconds"),
];

/// Figures that are one family: their names begin and end alike, and what is between becomes a label.
struct Labelled {
    starts: &'static str,
    ends: &'static str,
    family: &'static str,
    label: &'static str,
    /// A label that the end gives.
    also: Option<(&'static str, &'static str)>,
    help: &'static str,
}

const fn stage(ends: &'static str, family: &'static str, help: &'static str) -> Labelled {
    Labelled { starts: "drive_stage_", ends, family, label: "stage", also: None, help }
}

const fn moved(ends: &'static str, path: &'static str) -> Labelled {
    let help = "Bytes that crossed between flash, the drive's local memory and the host, by what for and which way";
    Labelled { starts: "drive_", ends, family: "drive_moved_bytes", label: "purpose", also: Some(("path", path)), help }
}

const LABELLED: [Labelled; 12] = [
    stage("_runs", "drive_stage_runs", "Runs of the drive's programs in pipelines, and of sources and sinks"),
    stage("_bytes_in", "drive_stage_in_bytes", "Bytes that went into stages of pipelines"),
    stage("_bytes_out", "drive_stage_out_bytes", "Bytes that came out of stages of pipelines"),
    stage("_unit_us", "drive_stage_unit_us", "Time in which stages of pipelines ran, reckoned from one run in sixteen"),
    stage("_failures", "drive_stage_failures", "Runs of stages of pipelines that failed"),
    stage("_waits", "drive_stage_waits", "Times that a stage of a pipeline waited for a unit or a sub-buffer"),
    moved("_flash_to_local_bytes", "flash_to_local"),
    moved("_local_to_flash_bytes", "local_to_flash"),
    moved("_local_to_host_bytes", "local_to_host"),
    moved("_host_to_local_bytes", "host_to_local"),
    Labelled {
        starts: "drive_",
        ends: "_commands",
        family: "drive_commands",
        label: "purpose",
        also: None,
        help: "Commands that the host gave the drive, by what for",
    },
    Labelled {
        starts: "udp_dropped_",
        ends: "",
        family: "udp_dropped",
        label: "reason",
        also: None,
        help: "Datagrams and requests in datagrams that were not answered, by why",
    },
];

/// Units of `stats`, those of Prometheus, and how many of the first are one of the second.
const UNITS: [(&str, &str, f64); 2] = [("_us", "_seconds", 1e6), ("_bits", "_bytes", 8.0)];

impl MetricName {
    /// The name of a figure of `stats`.
    pub fn of(figure: &str) -> MetricName {
        let labelled = LABELLED.iter().find_map(|family| Some((family, family.label_of(figure)?)));
        let (name, labels, help) = match labelled {
            Some((family, label)) => {
                let also = family.also.map(|(name, value)| (name, value.to_owned()));
                (family.family, [(family.label, label.to_owned())].into_iter().chain(also).collect(), Some(family.help))
            }
            None => {
                (RENAMED.iter().find(|(ours, _)| *ours == figure).map_or(figure, |(_, name)| name), Vec::new(), None)
            }
        };
        let unit = UNITS.iter().find_map(|(unit, base, divisor)| Some((name.strip_suffix(unit)?, base, *divisor)));
        let (family, divisor) =
            unit.map_or((name.to_owned(), 1.0), |(name, base, divisor)| (format!("{name}{base}"), divisor));
        MetricName { family, labels, help, divisor }
    }
}

impl Labelled {
    fn label_of<'a>(&self, figure: &'a str) -> Option<&'a str> {
        figure.strip_prefix(self.starts)?.strip_suffix(self.ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Figures, exposition::exposition};

    #[test]
    fn units_are_those_of_prometheus_and_come_last() {
        for (figure, family, divisor) in [
            ("curr_items", "curr_items", 1.0),
            ("uptime", "uptime_seconds", 1.0),
            ("freeze_age_us", "freeze_age_seconds", 1e6),
            ("pointer_size", "pointer_size_bytes", 8.0),
            ("time_in_listen_disabled_us", "listen_disabled_seconds", 1e6),
            ("bytes_read", "read_bytes", 1.0),
        ] {
            let name = MetricName::of(figure);
            assert_eq!((&name.family[..], name.divisor, name.labels.len()), (family, divisor, 0), "{figure}");
        }
    }

    #[test]
    fn parts_of_names_are_labels() {
        let name = MetricName::of("drive_stage_zstd_compress_unit_us");
        assert_eq!((&name.family[..], name.divisor), ("drive_stage_unit_seconds", 1e6));
        assert_eq!(name.labels, [("stage", "zstd_compress".to_owned())]);
        let name = MetricName::of("drive_get_local_to_host_bytes");
        assert_eq!(name.family, "drive_moved_bytes");
        assert_eq!(name.labels, [("purpose", "get".to_owned()), ("path", "local_to_host".to_owned())]);
        assert_eq!(MetricName::of("udp_dropped_rate").labels, [("reason", "rate".to_owned())]);
    }

    /// As Prometheus has it: what is counted ends in `_total`, and a unit is named behind everything else.
    #[test]
    fn no_name_of_the_page_hides_its_unit() {
        let page = exposition(&Figures::default().general(7));
        let names = page.lines().filter_map(|line| line.strip_prefix("# TYPE tapetum_")?.split(' ').next());
        for name in names {
            let name = name.trim_end_matches("_total").trim_end_matches("_info");
            let words: Vec<&str> = name.split('_').collect();
            let (last, before) = words.split_last().unwrap();
            assert!(!before.iter().any(|word| ["bytes", "seconds", "us", "ms", "bits"].contains(word)), "{name}");
            assert!(!["us", "ms", "bits", "maxbytes", "time", "rusage"].contains(last), "{name}");
        }
    }
}

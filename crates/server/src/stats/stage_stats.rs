//! Counters of the drive's programs as stages of pipelines, and of its sources and sinks.

use tapetum_drive::engine::StageSnapshot;

use crate::stats::{Figure, FigureKind};

/// Declares the names and help of the six figures of each program.
macro_rules! stages {
    ($list:ident: $($program:literal $name:literal: $what:literal,)*) => {
        const $list: &[(&str, [(&str, &str); 6])] = &[$((
            $program,
            [
                (concat!("drive_stage_", $name, "_runs"), concat!("Times that the drive ", $what, " in pipelines")),
                (concat!("drive_stage_", $name, "_bytes_in"), concat!("Bytes that went in where the drive ", $what, " in pipelines")),
                (concat!("drive_stage_", $name, "_bytes_out"), concat!("Bytes that came out where the drive ", $what, " in pipelines")),
                (concat!("drive_stage_", $name, "_unit_us"), concat!("Time in which the drive ", $what, " in pipelines, reckoned from one run in sixteen")),
                (concat!("drive_stage_", $name, "_failures"), concat!("Times that it failed where the drive ", $what, " in pipelines")),
                (concat!("drive_stage_", $name, "_waits"), concat!("Times that a unit or a sub-buffer was waited for where the drive ", $what, " in pipelines")),
            ],
        ),)*];
    };
}

stages!(
    NAMES:
    "source" "source": "read sources",
    "concat" "concat": "passed bytes on",
    "crc32c" "crc32c": "made CRC-32C checksums",
    "crc32c-check" "crc32c_check": "checked CRC-32C checksums",
    "sha256" "sha256": "made SHA-256 digests",
    "snappy-compress" "snappy_compress": "compressed by Snappy",
    "snappy-decompress" "snappy_decompress": "inflated Snappy",
    "zstd-compress" "zstd_compress": "compressed by Zstandard",
    "zstd-decompress" "zstd_decompress": "inflated Zstandard",
    "scan" "scan": "scanned records",
    "betweenness" "betweenness": "computed betweenness",
    "fields" "fields": "picked fields of records",
    "extension" "extension": "checked values in extensions of ordered keyspaces",
    "sink" "sink": "wrote sinks",
);

stages!(
    NAMES_OF_PICTURES:
    "jpeg_decode" "jpeg_decode": "decoded JPEGs",
    "resize" "resize": "resized pictures",
    "random_crop" "random_crop": "cut pictures by chance",
    "center_crop" "center_crop": "cut the middle of pictures",
    "random_resized_crop" "random_resized_crop": "cut pictures by chance and resized them",
    "flip" "flip": "flipped pictures by chance",
    "normalize" "normalize": "normalized pictures",
    "layout" "layout": "laid pictures out",
    "batch" "batch": "made samples of batches",
);

/// The names of the programs in this build.
fn names() -> impl Iterator<Item = &'static (&'static str, [(&'static str, &'static str); 6])> {
    let of_pictures = if cfg!(feature = "images") { NAMES_OF_PICTURES } else { &[] };
    NAMES.iter().chain(of_pictures)
}

/// Figures of each program that may be a stage; zero if the drive lacks it.
pub fn figures(stages: &[StageSnapshot]) -> impl Iterator<Item = Figure> {
    names().flat_map(|(program, names)| {
        let stage = stages.iter().find(|stage| stage.name == *program);
        let values = stage.map_or([0; 6], |stage| {
            let StageSnapshot { tasks, bytes_in, bytes_out, unit_us, failures, waits, .. } = *stage;
            [tasks, bytes_in, bytes_out, unit_us, failures, waits]
        });
        names.iter().zip(values).map(|((name, help), value)| Figure::new(name, FigureKind::Counter, help, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_that_may_be_a_stage_has_figures_under_its_name() {
        let programs = tapetum_drive::programs::built_in();
        let descriptors = programs.iter().map(|program| program.descriptor()).filter(|program| program.is_stream);
        let mut wanted: Vec<&str> = descriptors.map(|program| program.name).chain(["source", "sink"]).collect();
        let mut named: Vec<&str> = names().map(|(program, _)| *program).collect();
        wanted.sort_unstable();
        named.sort_unstable();
        assert_eq!(named, wanted, "add the new one to stages!");
        let stage = StageSnapshot { name: "zstd-decompress".into(), tasks: 3, failures: 1, ..StageSnapshot::default() };
        let figures: Vec<Figure> = figures(&[stage]).filter(|figure| figure.value != "0").collect();
        let told: Vec<_> = figures.iter().map(|figure| (figure.name, &figure.value[..])).collect();
        assert_eq!(told, [("drive_stage_zstd_decompress_runs", "3"), ("drive_stage_zstd_decompress_failures", "1")]);
    }
}

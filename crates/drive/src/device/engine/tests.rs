//! Pipelines from the host's bytes to the host's bytes.

use super::*;
use crate::device::arbiter::UnitCount;
use crate::device::{Device, programs};
use crate::env::Env;
use crate::flash::memory::MemoryFlash;
use crate::memory::LocalMemory;
use crate::protocol::{PipelineFailure, PipelinePlace, PipelineReason, ProgramId};
use std::sync::Arc;

fn device(env: Env) -> Arc<Device> {
    let local = LocalMemory::new(32 << 20).unwrap();
    Arc::new(Device::new(Arc::new(MemoryFlash::new(1 << 20)), local, programs::built_in().into(), env))
}

fn id(device: &Device, name: &str) -> ProgramId {
    let place = device.programs.iter().position(|program| program.descriptor().name == name).unwrap();
    ProgramId(place as u16)
}

fn work(device: &Device, names: &[&str]) -> PipelineWork {
    let stages = names.iter().map(|name| (id(device, name), Vec::new())).collect();
    PipelineWork { application: 0, stages, deadline_us: None, output_bytes_max: 4 << 20 }
}

fn text() -> Vec<u8> {
    (0..300_000u32).flat_map(|number| (number % 7919).to_le_bytes()).take(1 << 20).collect()
}

fn check(engine: &PipelineEngine, device: &Device) {
    let text = text();
    let run = |names: &[&str], bytes: &[u8]| engine.run(&work(device, names), bytes);
    let digest = run(&["sha256"], &text).unwrap();
    assert_eq!(digest.len(), 32);
    let stored = run(&["zstd-compress"], &text).unwrap();
    assert!(stored.len() < text.len() / 2);
    assert_eq!(run(&["zstd-decompress", "sha256"], &stored), Ok(digest.clone()));
    let there_and_back = ["snappy-compress", "zstd-compress", "zstd-decompress", "snappy-decompress", "concat"];
    assert_eq!(run(&there_and_back, &text), Ok(text));
    assert_eq!(run(&["sha256"], &[]).unwrap()[..2], [0xe3, 0xb0]);
}

#[test]
fn pipelines_run_inline_in_a_simulation() {
    let device = device(Env::simulated(1).0);
    let engine = PipelineEngine::new(device.clone(), &EngineOptions::default()).unwrap();
    check(&engine, &device);
    assert!(device.counters().local_to_host_bytes > 1 << 20);
}

#[test]
fn units_with_threads_do_the_same_for_many_callers() {
    let device = device(Env::system());
    let unit = |name, units| UnitCount { program: id(&device, name), units };
    let units = vec![unit("zstd-decompress", 2), unit("sha256", 1)];
    let options = EngineOptions { units, weights: vec![1, 2], sub_buffers: 18, ..EngineOptions::default() };
    let engine = Arc::new(PipelineEngine::new(device.clone(), &options).unwrap());
    let callers: Vec<_> = (0..4)
        .map(|number| {
            let (engine, device) = (engine.clone(), device.clone());
            let name = format!("caller-{number}");
            device.env.clone().spawn(&name, move || check(&engine, &device)).unwrap()
        })
        .collect();
    callers.into_iter().for_each(|caller| caller.join().unwrap());
}

#[test]
fn a_stage_that_fails_is_named() {
    let device = device(Env::simulated(1).0);
    let engine = PipelineEngine::new(device.clone(), &EngineOptions::default()).unwrap();
    let run = |work: &PipelineWork| engine.run(work, &text()).unwrap_err();
    let failure = |place, reason| PipelineFailure::new(place, reason);
    let failed = |failure: PipelineFailure, name: &str| PipelineError::Failed(failure, Some(name.into()));
    let damaged = failure(PipelinePlace::Stage(1), PipelineReason::Program).with(2);
    let damaged = failed(damaged, "zstd-decompress");
    assert_eq!(run(&work(&device, &["concat", "zstd-decompress", "sha256"])), damaged);
    assert!(damaged.to_string().starts_with("stage 1, zstd-decompress: its input is damaged"));
    let unknown = PipelineWork { stages: vec![(ProgramId(99), Vec::new())], ..work(&device, &[]) };
    let refusal = failure(PipelinePlace::Stage(0), PipelineReason::UnknownProgram).with(99);
    assert_eq!(run(&unknown), PipelineError::Failed(refusal, None));
    let record = failed(failure(PipelinePlace::Stage(0), PipelineReason::NotAStream), "match-record");
    assert_eq!(run(&work(&device, &["match-record"])), record);
    assert_eq!(run(&work(&device, &["concat"; 9])), PipelineError::TooManyStages(9));
    let nothing = failure(PipelinePlace::Source, PipelineReason::NoStages);
    assert_eq!(run(&work(&device, &[])), PipelineError::Failed(nothing, None));
    let short = PipelineWork { output_bytes_max: 1000, ..work(&device, &["concat"]) };
    let too_long = failure(PipelinePlace::Sink, PipelineReason::OutputTooLong).with(1000);
    assert_eq!(run(&short), PipelineError::Failed(too_long, None));
    let late = PipelineWork { deadline_us: Some(0), ..work(&device, &["concat"]) };
    let too_late = failure(PipelinePlace::Source, PipelineReason::DeadlineExceeded);
    assert_eq!(run(&late), PipelineError::Failed(too_late, None));
    let mut level = work(&device, &["zstd-compress"]);
    level.stages[0].1 = vec![1, 2, 3];
    let wrong = failed(failure(PipelinePlace::Stage(0), PipelineReason::Program).with(1), "zstd-compress");
    assert_eq!(run(&level), wrong);
    level.stages[0].1 = vec![0; 40];
    assert_eq!(run(&level), PipelineError::LongParameters { stage: 0, bytes: 40 });
    // Nothing of what failed is held.
    check(&engine, &device);
}

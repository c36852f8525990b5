//! A store on a block device: a loop device over a file, under the load of the kill test. The store is told to take a part
//! of the device, grows on it, and may not go beyond. Only root may make a loop device: others are told that the test was
//! left out.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use crate::arguments::Arguments;
use crate::kill::{CAPACITY_MAX_BYTES, Kill, Plan, Run};
use crate::loop_device::LoopDevice;
use crate::{Failure, workspace};
use tapetum_bench::server::ServerOptions;

const DEVICE_BYTES: u64 = 2 * CAPACITY_MAX_BYTES;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let plan = Plan::parse(arguments)?;
    workspace::keeping("device", |scratch| on_loop_device(scratch, &plan))
}

fn on_loop_device(scratch: &Path, plan: &Plan) -> Result<(), Failure> {
    let (file, data) = (scratch.join("file"), scratch.join("data"));
    File::create(&file)?.set_len(DEVICE_BYTES)?;
    match LoopDevice::over(&file) {
        Ok(device) => {
            refuses_more_than_there_is(&plan.binary, &data, &device.path)?;
            let mut run = Run::new(plan, &data, Kill)?.on_device(&device.path).with_ordered()?;
            run.cycles(plan.cycles)?;
            stayed_within(&plan.binary, &device.path)?;
            println!("test-device: {}", run.summary());
        }
        Err(why) => println!("test-device: left out, for want of a loop device ({why})"),
    }
    Ok(())
}

fn refuses_more_than_there_is(binary: &Path, data: &Path, device: &Path) -> Result<(), Failure> {
    let device = device.display().to_string();
    let wanted = (2 * DEVICE_BYTES).to_string();
    match ServerOptions::new(binary, data, &["--drive", &device, "--capacity", &wanted])?.start() {
        Ok(_) => Err("a store was made that is larger than its device".into()),
        Err(told) if told.to_string().contains("use a larger one, or ask for less") => Ok(()),
        Err(other) => Err(format!("a capacity beyond the device is refused for another reason: {other}").into()),
    }
}

/// The store has the capacity that it was told to take, and has grown by; it does not have the whole device.
fn stayed_within(binary: &Path, device: &Path) -> Result<(), Failure> {
    let output = Command::new(binary).args(["inspect", "--json", "--drive"]).arg(device).output()?;
    let inspection: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let capacity_bytes = inspection["superblock"]["capacity_bytes"].as_u64().unwrap_or(0);
    match (1..=CAPACITY_MAX_BYTES).contains(&capacity_bytes) {
        true => Ok(()),
        false => Err(format!(
            "the store was never told to take more than {CAPACITY_MAX_BYTES} bytes and has {capacity_bytes}"
        )
        .into()),
    }
}

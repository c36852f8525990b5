//! Graphs: plans as a drive reads them, the edges that a scan gives, and what parts give to be merged.

use tapetum_kernels::graph::{GraphPlan, GraphResult, GraphWork, PLAN_BYTES};

/// Enough for every input.
const MEMORY_MIB: u32 = 4;

/// A plan that reads is written in one way. Whatever follows it is edges, or refused; what comes of it reads back.
pub fn work(bytes: &[u8]) {
    let Some((plan, input)) = bytes.split_at_checked(PLAN_BYTES) else { return };
    let Ok(plan) = GraphPlan::decode(plan) else { return };
    assert_eq!(&plan.encode()[..], &bytes[..PLAN_BYTES]);
    let plan = GraphPlan { memory_mib: plan.memory_mib.min(MEMORY_MIB), ..plan };
    let whole = run(plan, &[input]);
    // Cut anywhere, it is the same.
    let (first, second) = input.split_at(input.len() / 3);
    assert_eq!(run(plan, &[first, second]), whole);
    let Some(frames) = whole else { return };
    if plan.parts == 1 {
        GraphResult::decode(&frames).expect("what work gives is read");
    }
}

fn run(plan: GraphPlan, input: &[&[u8]]) -> Option<Vec<u8>> {
    let (mut work, mut out) = (GraphWork::new(plan), Vec::new());
    input.iter().try_for_each(|part| work.take(part)).ok()?;
    work.begin(&mut out).ok()?;
    while work.slice(&mut out, &mut || false).ok()? {}
    Some(out)
}

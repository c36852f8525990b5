//! Pictures through pipelines.

use tapetum::images::{BoundPlan, ImageChance, ImagePlan, ImageSet, SetError};

use super::OpenStore;
use crate::caller::{Caller, CallerLeft};
use crate::failure::Failure;
use crate::reply::Reply;
use crate::request::RunPictures;

pub fn run(open: OpenStore<'_>, asked: &RunPictures, caller: &mut dyn Caller) -> Result<(), Failure> {
    let RunPictures { keyspace: name, pipeline, prefixes, seed, most, application } = asked;
    let keyspace = open.keyspace(name)?;
    let plan: ImagePlan =
        pipeline.parse().map_err(|error: tapetum::images::PlanError| Failure::bad(error.to_string()))?;
    if plan.batch().is_some() {
        return Err(Failure::bad("a batch is for training: leave it out, pictures are written one by one"));
    }
    let mut bound = BoundPlan::new(open.store, &plan).map_err(|error| open.failure(error))?;
    if let Some(application) = application {
        bound = bound.of_application(open.application(application)?);
    }
    let set = ImageSet::load(&keyspace, name).map_err(|error| match error {
        SetError::Store(error) => open.failure(error),
        error => Failure::bad(error.to_string()),
    })?;
    let is_wanted = |key: &[u8]| prefixes.iter().any(|prefix| key.starts_with(prefix));
    let most = usize::try_from(*most).unwrap_or(usize::MAX);
    for item in (0..set.len()).filter(|item| is_wanted(set.key(*item))).take(most) {
        let (key, chance) = (set.key(item), ImageChance { seed: *seed, epoch: 0, item: item as u64 });
        caller.take(match bound.run(&keyspace, key, chance) {
            Ok(frame) => Reply::Picture { key: key.to_vec(), frame },
            Err(error) => Reply::NoPicture(error.to_string()),
        })?;
        if caller.has_left() {
            return Err(CallerLeft.into());
        }
    }
    Ok(())
}

//! Sets with redundancy: their shape when they are made, and which members they go on with when they are opened.
//!
//! **A member's absence is durable on the others before anything is acknowledged that it does not have.** So a set of three or more opens without
//! any one member: one of the others would know of a change that the rest were not told of. Of a mirror's two each may be the one that was away; the
//! one that was not told that the other is absent opens alone only by force.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::member_error::MemberError;
use super::members::write_label;
use super::{OpenError, OpenNote, Options};
use tapetum_base::error::Error;
use tapetum_base::media::geometry::Geometry;
use tapetum_base::media::member_label::{MemberLabel, Standing, standing};
use tapetum_drive::{
    AbsentFlash, Env, Flash, RecordAbsence, Redundancy, RedundantFlash, SetMember, Shape, member_bytes,
};

/// By so much a set that opens by force is ahead of the member that it goes on without.
const FORCED_GENERATIONS: u64 = 1 << 16;
/// Sizes that are tried until what lies before the extents is as long as the extents need it.
const TRIES_MAX: usize = 16;

/// A member that is there.
#[derive(Clone)]
pub(super) struct Given {
    pub path: PathBuf,
    pub flash: Arc<dyn Flash>,
    pub label: MemberLabel,
}

/// How a set is opened.
#[derive(Clone, Copy)]
pub(super) struct Opening {
    /// To write: the members may be told who is absent.
    pub writes: bool,
    /// Also if the missing member may have more.
    pub by_force: bool,
}

/// The shape of a new set whose members have `share_bytes` each, and the write buffers with which it was found.
pub(super) fn shape(
    redundancy: Redundancy,
    members: usize,
    share_bytes: u64,
    options: &Options,
) -> Result<(Shape, u64), Error> {
    if members < least_members(redundancy) {
        return Err(Error::Options(format!(
            "redundancy {} needs {} members or more, and {members} were given: give more, each with --drive",
            name_of(redundancy),
            least_members(redundancy)
        )));
    }
    let data_bytes = match redundancy {
        Redundancy::Mirror => share_bytes * members as u64 / 2,
        Redundancy::Raid5 => share_bytes * (members as u64 - 1),
    };
    let memory_bytes = options.memory_bytes.unwrap_or(Options::MEMORY_DEFAULT_BYTES);
    let made = options.of_store(data_bytes, memory_bytes);
    let geometry = |bytes| Geometry::new(bytes, made.segment_bytes, made.partition_bits, 512);
    let of_all = geometry(data_bytes)?;
    let rows_bytes = share_bytes.saturating_sub(of_all.extents_offset());
    let mut shape = Shape::within(redundancy, members, of_all.extents_offset(), of_all.extent_bytes, rows_bytes);
    // A smaller store has less before its extents.
    for _ in 0..TRIES_MAX {
        let own_bytes = geometry(shape.capacity_bytes())?.extents_offset();
        if own_bytes == shape.own_bytes {
            return Ok((shape, made.segment_bytes));
        }
        shape.own_bytes = own_bytes;
    }
    Err(Error::Options("no layout was found for this capacity: give another one".into()))
}

fn least_members(redundancy: Redundancy) -> usize {
    match redundancy {
        Redundancy::Mirror => 2,
        Redundancy::Raid5 => 3,
    }
}

pub(super) fn name_of(redundancy: Redundancy) -> &'static str {
    match redundancy {
        Redundancy::Mirror => "mirror",
        Redundancy::Raid5 => "raid5",
    }
}

/// The flash of a new set.
pub(super) fn of_new(shape: Shape, members: &[Given], env: &Env) -> RedundantFlash {
    let set = members.iter().map(set_member).collect();
    RedundantFlash::new(shape, set, 0, recorder(members.to_vec(), 1, env))
}

/// The set of these members, which are of one set and different places, without the one that is missing or was away. The members are told so.
pub(super) fn compose(
    given: &[Given],
    how: Opening,
    env: &Env,
    note: &mut impl FnMut(OpenNote),
) -> Result<Arc<dyn Flash>, OpenError> {
    let labels: Vec<MemberLabel> = given.iter().map(|member| member.label).collect();
    let Standing { generation, whole, stale, is_recorded, is_apart } = standing(&labels);
    let newest = labels.iter().max_by_key(|label| label.generation);
    let Some((label, shape)) = newest.and_then(|label| Some((*label, label.shape()?))) else {
        unreachable!("it is a set with redundancy")
    };
    let refused = |path: &Path, error| Err(OpenError::member(path, error));
    let members: u16 = label.members;
    let absent = !whole & ((1 << members) - 1);
    let places: Vec<u16> = (0..members).filter(|place| absent >> place & 1 == 1).collect();
    let first = &given[0].path;
    if is_apart {
        return refused(first, MemberError::WentApart);
    }
    if places.len() > 1 {
        return refused(first, MemberError::TooFew { places, members });
    }
    if absent != 0 && !is_recorded && whole.count_ones() == 1 && !how.by_force {
        return refused(first, MemberError::NotTold { places });
    }
    let is_whole = |member: &&Given| whole >> member.label.place & 1 == 1;
    let mut there: Vec<Given> = given.iter().filter(is_whole).cloned().collect();
    for Given { path, flash, label } in &there {
        let (has_bytes, needed_bytes) = (flash.capacity_bytes(), label.head_bytes + label.used_bytes);
        if has_bytes < needed_bytes {
            return refused(path, MemberError::CutShort { has_bytes, needed_bytes });
        }
    }
    if how.writes && !is_recorded {
        let generation = generation + if how.by_force && absent != 0 { FORCED_GENERATIONS } else { 1 };
        for Given { path, flash, label } in &mut there {
            *label = label.in_generation(generation, absent);
            write_label(flash, path, label, env)?;
        }
    }
    let left_out = given.iter().find(|member| stale >> member.label.place & 1 == 1).map(|member| member.path.clone());
    if let Some(place) = places.first() {
        note(OpenNote::Degraded { place: *place, left_out });
    }
    let set = (0..members).map(|place| match there.iter().find(|member| member.label.place == place) {
        Some(member) => set_member(member),
        None => {
            SetMember { flash: Arc::new(AbsentFlash), head_bytes: 0, used_bytes: member_bytes(&shape, place.into()) }
        }
    });
    let generation = there.iter().map(|member| member.label.generation).max().unwrap_or(generation);
    let record = recorder(there.clone(), generation, env);
    Ok(Arc::new(RedundantFlash::new(shape, set.collect(), absent, record)))
}

fn set_member(Given { flash, label, .. }: &Given) -> SetMember {
    SetMember { flash: flash.clone(), head_bytes: label.head_bytes, used_bytes: label.used_bytes }
}

/// Tells the other members of a loss, by their labels.
fn recorder(members: Vec<Given>, generation: u64, env: &Env) -> RecordAbsence {
    let (mut generation, env) = (generation, env.clone());
    Box::new(move |lost| {
        generation += 1;
        for Given { path, flash, label } in members.iter().filter(|member| lost >> member.label.place & 1 == 0) {
            let label = label.in_generation(generation, lost);
            write_label(flash, path, &label, &env).map_err(|error| std::io::Error::other(error.to_string()))?;
        }
        Ok(())
    })
}

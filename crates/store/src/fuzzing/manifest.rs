//! The manifest: what its frames say, and areas that were written, cut by a crash or damaged.

use super::Input;
use crate::error::Error;
use crate::hashed::catalog::{Catalog, Deaths, DeletionMark, Install, Marks, SegmentState, encode_marks, parse_marks};
use crate::hashed::index::checkpoint::Checkpoint;
use crate::hashed::segment::{Descriptor, LargeEntry};
use crate::keyspace::KeyspaceId;
use crate::manifest::{Manifest, Recovered};
use crate::media::geometry::Geometry;
use crate::media::io::{Io, run};
use crate::media::wire::{Reader, Writer};
use crate::planted::Planted;
use std::sync::Arc;
use tapetum_drive::{Drive, Env, Flash, LocalMemory, MemoryFlash};
use tapetum_kernels::data_page::PageSize;
use tapetum_kernels::extent_address::EXTENTS_MAX;
use tapetum_kernels::reference::Run;

/// What a frame says parses to something that reads back when written, or is refused; and a change of the catalog that does
/// not fit is refused.
pub fn manifest_payload(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut catalog = Catalog::default();
    while !input.is_empty() {
        let (kind, length) = (input.u8(), input.u8());
        let payload = input.bytes(length.into());
        let mut writer = Writer::default();
        match kind & 3 {
            0 => {
                let Ok(install) = Install::parse(payload) else { continue };
                install.encode(&mut writer);
                assert_eq!(Install::parse(&writer.bytes).as_ref(), Ok(&install));
                let mut changed = copy(&catalog);
                if changed.install(&install).is_ok() {
                    check_catalog(&changed);
                    catalog = changed;
                }
            }
            1 => {
                let Ok(state) = SegmentState::parse(&mut Reader::new(payload)) else { continue };
                state.encode(&mut writer);
                assert_eq!(SegmentState::parse(&mut Reader::new(&writer.bytes)).as_ref(), Ok(&state));
                catalog.segments.insert(state.descriptor.number, state);
            }
            2 => {
                let Ok(checkpoint) = Checkpoint::parse(payload) else { continue };
                checkpoint.encode(&mut writer);
                assert_eq!(Checkpoint::parse(&writer.bytes), Ok(checkpoint));
            }
            _ => {
                let Ok((buffer_next, marks)) = parse_marks(&mut Reader::new(payload)) else { continue };
                encode_marks(buffer_next, &marks, &mut writer);
                assert_eq!(parse_marks(&mut Reader::new(&writer.bytes)), Ok((buffer_next, marks)));
            }
        }
    }
}

/// A catalog with bits of its own: clones share theirs.
fn copy(catalog: &Catalog) -> Catalog {
    let copy_state = |state: &SegmentState| {
        let mut writer = Writer::default();
        state.encode(&mut writer);
        SegmentState::parse(&mut Reader::new(&writer.bytes)).expect("a state reads back")
    };
    let segments = catalog.segments.iter().map(|(&number, state)| (number, copy_state(state))).collect();
    Catalog { segments, ..catalog.clone() }
}

fn check_catalog(catalog: &Catalog) {
    for (number, state) in &catalog.segments {
        assert_eq!(*number, state.descriptor.number);
        assert_eq!(state.valid_entries, state.valid.ones());
        assert!(state.valid_entries <= state.descriptor.entries);
    }
}

/// What the manifest says at one time.
#[derive(PartialEq, Debug)]
struct State {
    catalog: Catalog,
    generation: u64,
    checkpoint: Option<Checkpoint>,
}

impl State {
    fn of(recovered: &Recovered) -> State {
        let checkpoint = recovered.checkpoint.clone();
        State { catalog: copy(&recovered.catalog), generation: recovered.manifest.generation(), checkpoint }
    }

    /// Whether it is that state, perhaps without its checkpoint: a snapshot ends that before the change itself is written.
    fn is_cut_back_to(&self, before: &State) -> bool {
        self.catalog == before.catalog
            && self.generation == before.generation
            && (self.checkpoint.is_none() || self.checkpoint == before.checkpoint)
    }
}

/// A drive with nothing but a manifest on it.
struct Area {
    drive: Drive,
    io: Io,
    geometry: Geometry,
}

impl Area {
    const STORE: u64 = 77;

    fn new() -> Area {
        // Little room, so that snapshots are written.
        let geometry = Geometry::new(2 << 20, 64 << 10, 2, 512).expect("a small store");
        let geometry = Geometry { manifest_bytes: 8 << 10, ..geometry };
        let flash: Arc<dyn Flash> = Arc::new(MemoryFlash::new(64 << 10));
        let local = LocalMemory::new(256 << 10).expect("memory");
        let (env, _) = Env::simulated(1);
        let drive = Drive::new(flash, local, Vec::new(), env);
        let io = Io::new(drive.queue_pair(16).expect("a queue pair"));
        Area { drive, io, geometry }
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        run(&self.io, future, || false).expect("memory answers")
    }

    fn recover(&self) -> Result<Recovered, Error> {
        let planted = Planted::default();
        self.run(Manifest::recover(&self.io, self.drive.local(), &self.geometry, Self::STORE, planted))
    }

    /// Both areas.
    fn image(&self) -> Vec<u8> {
        let length = 2 * self.geometry.manifest_bytes as usize;
        let mut buffer = self.drive.local().allocate(length).expect("memory");
        self.run(self.io.read(self.geometry.manifest_offset(0), &mut buffer, 0, length)).expect("a read");
        buffer.bytes()[..length].to_vec()
    }

    fn set_image(&self, image: &[u8]) {
        let mut buffer = self.drive.local().allocate(image.len()).expect("memory");
        buffer.bytes_mut()[..image.len()].copy_from_slice(image);
        let flash = self.geometry.manifest_offset(0);
        self.run(self.io.write_durably(flash, &mut buffer, image.len())).expect("a write");
    }
}

/// What is recovered is what was written last. Of a frame that a crash cut nothing is left; damage anywhere is an error, or
/// makes no difference, unless it struck the last frame, which a crash might have cut as well.
pub fn manifest_frames(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (what, at, damage) = (input.u8(), usize::from(input.u16()), input.array::<3>());
    let area = Area::new();
    area.run(Manifest::create(&area.io, &area.geometry, Area::STORE)).expect("room");
    let mut recovered = area.recover().expect("an empty store");
    let (mut before, mut now) = (State::of(&recovered), State::of(&recovered));
    let (mut image_before, mut last_frame) = (area.image(), 0..0);
    let mut steps = 0;
    while !input.is_empty() && steps < 24 {
        steps += 1;
        // Only a cut looks at it.
        let image = if what & 3 == 1 { area.image() } else { Vec::new() };
        let place_before = recovered.manifest.summary();
        let Some(next) = step(&area, &mut recovered, &now, &mut input) else { continue };
        (before, now, image_before) = (now, next, image);
        let place = recovered.manifest.summary();
        let begin = if place.area == place_before.area { place_before.position } else { 0 };
        let offset = place.area as u64 * area.geometry.manifest_bytes;
        last_frame = (offset + begin) as usize..(offset + place.position) as usize;
    }
    let whole = area.image();
    let mut image = whole.clone();
    match what & 3 {
        0 => assert_eq!(State::of(&area.recover().expect("what was written")), now),
        1 => {
            // A crash in the last change: what it wrote up to some sector.
            let sectors = last_frame.len() / 512;
            let cut = last_frame.start + 512 * (at % (sectors + 1));
            image[cut..last_frame.end].copy_from_slice(&image_before[cut..last_frame.end]);
            area.set_image(&image);
            let found = State::of(&area.recover().expect("a crash is no damage"));
            // What was cut off may be what was there before, or differ in the filling behind the frame only.
            let cut_off = image != whole;
            assert!(found == now || (cut_off && found.is_cut_back_to(&before)), "{found:?} instead of {before:?}");
        }
        _ => {
            let at = at % (image.len() - damage.len());
            image[at..].iter_mut().zip(damage).for_each(|(byte, damage)| *byte ^= damage);
            area.set_image(&image);
            match area.recover() {
                Ok(found) if State::of(&found) == now => {}
                Ok(found) => {
                    let (found, struck) =
                        (State::of(&found), last_frame.start < at + damage.len() && at < last_frame.end);
                    assert!(struck && found.is_cut_back_to(&before), "{found:?} instead of {now:?}");
                }
                Err(error) => assert!(matches!(error, Error::Corrupt(_)), "{error}"),
            }
            return;
        }
    }
    // Whatever was recovered, the manifest goes on from there.
    let mut again = area.recover().expect("as before");
    let state = State::of(&again);
    area.run(again.manifest.opened(&again.catalog, 1000, 7)).expect("room");
    let opened = State::of(&area.recover().expect("what was written"));
    assert_eq!(opened.generation, state.generation + 1);
    assert_eq!(opened.catalog, Catalog { stamp_base: 1000, stamp_opened: 7, ..state.catalog });
}

/// One change, durable; `None` when it does not fit.
fn step(area: &Area, recovered: &mut Recovered, state: &State, input: &mut Input<'_>) -> Option<State> {
    let Recovered { manifest, catalog, .. } = recovered;
    let what = input.u8();
    match what & 7 {
        0 => {
            let stamp_next = state.catalog.stamp_base + u64::from(what);
            area.run(manifest.opened(catalog, stamp_next, stamp_next / 2)).ok()?;
            (catalog.stamp_base, catalog.stamp_opened) = (stamp_next, stamp_next / 2);
        }
        1 => {
            let checkpoint = checkpoint(input);
            if !area.run(manifest.checkpoint(catalog, &checkpoint)).ok()? {
                return None;
            }
            return Some(State {
                catalog: copy(catalog),
                generation: manifest.generation(),
                checkpoint: Some(checkpoint),
            });
        }
        _ => {
            let install = install(catalog, input);
            let mut changed = copy(catalog);
            changed.install(&install).ok()?;
            area.run(manifest.install(catalog, &install)).expect("room for a few segments");
            *catalog = changed;
        }
    }
    Some(State { catalog: copy(catalog), generation: manifest.generation(), checkpoint: None })
}

fn checkpoint(input: &mut Input<'_>) -> Checkpoint {
    let mut writer = Writer::default();
    writer.u32(input.u8().into());
    writer.u32(4096);
    writer.u32(1);
    (0..7).for_each(|_| writer.u32(input.u8().into()));
    writer.list(&[3, 1]);
    writer.list(&vec![9; usize::from(input.u8())]);
    Checkpoint::parse(&writer.bytes).expect("it is whole")
}

fn marks(input: &mut Input<'_>) -> Marks {
    let watermark = input.u8();
    let mark = DeletionMark { watermark: watermark.into(), planned_at: 0 };
    let deletions = [(KeyspaceId(u16::from(watermark) & 3), mark)].into();
    Marks { deletions, stamp_max: input.u8().into(), log_crc: 5 }
}

/// A change that fits the catalog, mostly.
fn install(catalog: &Catalog, input: &mut Input<'_>) -> Install {
    let shape = input.u8();
    let mut install =
        Install { buffer_next: catalog.buffer_next + u64::from(shape & 1), marks: marks(input), ..Install::default() };
    if shape & 2 != 0 && catalog.segments.len() < 6 {
        install.added.push(descriptor(catalog.number_free(&[]), input));
    }
    let place = usize::from(shape >> 4);
    if let Some(state) = catalog.segments.values().nth(place % catalog.segments.len().max(1)) {
        let segment = state.descriptor.number;
        if shape & 4 != 0 {
            let first = input.u8();
            let alive = (0..state.descriptor.entries).filter(|entry| state.valid.get(*entry));
            let entries: Vec<u32> = alive.skip(usize::from(first & 15)).take(usize::from(first >> 4)).collect();
            install.deaths.push(Deaths { segment, record_bytes: entries.len() as u64, entries });
        }
        if shape & 8 != 0 {
            install.dropped.push(segment);
        }
    }
    install
}

fn descriptor(number: u32, input: &mut Input<'_>) -> Descriptor {
    let shape = input.u8();
    let entries = u32::from(input.u8()) + 1;
    let run = Run { first: input.number() % (EXTENTS_MAX / 2), count: u32::from(input.u16()) + 1 };
    let large = LargeEntry { entry: entries - 1, keyspace: KeyspaceId::DEFAULT, expiry: 0, stamp: 4, runs: vec![run] };
    Descriptor {
        number,
        version: input.u32().into(),
        entries,
        data_pages: 1,
        data_page_size: if shape & 64 == 0 { PageSize::Large } else { PageSize::Small },
        key_pages: 1,
        fence_pages: 1,
        record_bytes_max: 10,
        record_bytes: u64::from(entries) * 10,
        expiry_max: input.u32(),
        stamp_max: input.u8().into(),
        data_extents: (0..u32::from(shape & 31)).collect(),
        key_extents: vec![number],
        large: if shape & 32 == 0 { Vec::new() } else { vec![large] },
    }
}

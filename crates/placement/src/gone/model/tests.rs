use super::*;

const fn setup(makes: Makes, processes: usize, people: u8) -> Setup {
    Setup {
        makes,
        identified: true,
        people,
        processes,
        writes_are_prompt: true,
        returns_are_noticed: true,
        defect: None,
    }
}

fn holds(setup: Setup) {
    match check(setup) {
        Ok(worlds) => {
            println!("{:?}, {} processes, {} deeds: {worlds} worlds", setup.makes, setup.processes, setup.people);
            assert!(worlds > 1_000, "only {worlds} worlds: the model lost its steps");
        }
        Err((broken, way)) => panic!("{broken:?} by {way:?} in {setup:?}"),
    }
}

fn breaks(setup: Setup, expected: &[Broken]) {
    match check(setup) {
        Ok(worlds) => panic!("nothing was found in {worlds} worlds of {setup:?}"),
        Err((broken, way)) => assert!(expected.contains(&broken), "{broken:?} by {way:?} in {setup:?}"),
    }
}

#[test]
fn nothing_of_a_machine_that_is_there_is_lost_and_no_claim_is_forgotten() {
    for makes in [Makes::StatefulSet, Makes::Us, Makes::Nobody] {
        holds(setup(makes, 1, 3));
        holds(setup(makes, 2, 1));
    }
    // A machine that took the name, and the one with the data back again.
    holds(setup(Makes::StatefulSet, 1, 4));
}

#[test]
fn nor_is_it_where_machines_do_not_say_which_they_are() {
    for makes in [Makes::StatefulSet, Makes::Us] {
        holds(Setup { identified: false, ..setup(makes, 1, 3) });
    }
}

#[test]
fn the_checker_finds_each_mistake() {
    let (set, us) = (setup(Makes::StatefulSet, 1, 3), setup(Makes::Us, 1, 3));
    let nobody = setup(Makes::Nobody, 1, 2);
    let silent = Setup { identified: false, ..set };
    let with = |defect, setup| Setup { defect: Some(defect), ..setup };
    let without = |holds, setup| with(Defect::WithoutCheck(holds), setup);
    breaks(without("no such machine is in the cluster", set), &[Broken::DataLost]);
    breaks(without("that is so for long enough", set), &[Broken::TooSoon]);
    breaks(without("it is known which machine it was", silent), &[Broken::DataLost, Broken::TooSoon]);
    breaks(without("somebody makes its claim again", nobody), &[Broken::BoundVolume, Broken::NobodysClaim]);
    breaks(with(Defect::NotedUnread, set), &[Broken::DataLost]);
    breaks(with(Defect::NotedLate, setup(Makes::StatefulSet, 1, 4)), &[Broken::DataLost]);
    breaks(with(Defect::NodesUnread, set), &[Broken::DataLost]);
    breaks(with(Defect::KnownByUid, set), &[Broken::DataLost]);
    breaks(with(Defect::KnownByName, set), &[Broken::Forgotten]);
    breaks(with(Defect::ClaimByName, setup(Makes::StatefulSet, 1, 4)), &[Broken::WrongClaim]);
    breaks(with(Defect::AnyVersion, setup(Makes::StatefulSet, 2, 3)), &[Broken::DataLost, Broken::TooSoon]);
    breaks(with(Defect::WrittenDownAfter, us), &[Broken::Forgotten]);
    breaks(with(Defect::NotKept, us), &[Broken::Forgotten]);
    breaks(with(Defect::TakenBackEarly, us), &[Broken::Forgotten]);
    breaks(with(Defect::StillUnread, us), &[Broken::MadeTwice]);
    breaks(with(Defect::TakenBackBlindly, setup(Makes::Us, 2, 1)), &[Broken::Forgotten]);
}

#[test]
fn what_the_rules_rely_on_is_needed() {
    let set = setup(Makes::StatefulSet, 1, 3);
    // Nobody can make a deletion depend on another object.
    breaks(Setup { writes_are_prompt: false, ..set }, &[Broken::DataLost]);
    // Nobody records when a Node object was deleted, so that two absences look like one if nobody saw what was between.
    breaks(Setup { returns_are_noticed: false, ..set }, &[Broken::TooSoon]);
}

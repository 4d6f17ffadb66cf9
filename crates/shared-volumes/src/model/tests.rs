use super::*;

fn holds(setup: Setup) {
    match check(setup) {
        Ok(worlds) => {
            println!("{} replicas, {} deeds, keeps {}: {worlds} worlds", setup.replicas, setup.deeds, setup.keeps);
            assert!(worlds > 1_000, "only {worlds} worlds: the model lost its steps");
        }
        Err((broken, way)) => panic!("{broken:?} by {way:?} in {setup:?}"),
    }
}

fn breaks(defect: Defect, setup: Setup, expected: &[Broken]) {
    let setup = Setup { defect: Some(defect), ..setup };
    match check(setup) {
        Ok(worlds) => panic!("nothing was found in {worlds} worlds of {setup:?}"),
        Err((broken, way)) => assert!(expected.contains(&broken), "{broken:?} by {way:?} in {setup:?}"),
    }
}

#[test]
fn no_address_ever_leads_to_another_volumes_server() {
    holds(Setup::new(1, 2));
    holds(Setup::new(2, 1));
}

#[test]
fn nor_where_the_ways_to_servers_that_are_gone_are_kept() {
    holds(Setup { keeps: true, ..Setup::new(1, 2) });
    holds(Setup { keeps: true, ..Setup::new(2, 1) });
}

#[test]
fn the_checker_finds_each_mistake() {
    let (one, two) = (Setup::new(1, 2), Setup::new(2, 1));
    breaks(Defect::WithoutTarget("no other volume has the same endpoint"), one, &[Broken::Misled, Broken::Forgotten]);
    breaks(Defect::WithoutTarget("no other volume's address leads there"), one, &[Broken::Shared]);
    breaks(Defect::NoMemory, one, &[Broken::Shared, Broken::Forgotten]);
    breaks(Defect::ForgetsRefused, one, &[Broken::Shared]);
    breaks(Defect::NotLate, one, &[Broken::Shared]);
    breaks(Defect::AnyVersion, one, &[Broken::Shared]);
    breaks(Defect::NoFirstLook, two, &[Broken::Shared]);
    breaks(Defect::NoFence, two, &[Broken::Shared]);
    breaks(Defect::AnyAddress, one, &[Broken::AddressChanged]);
    breaks(Defect::LeftOpen, one, &[Broken::Shared, Broken::Forgotten]);
    breaks(
        Defect::WithoutPublication("its slices were read back and lead to its server alone"),
        one,
        &[Broken::PublishedNothing, Broken::Forgotten],
    );
}

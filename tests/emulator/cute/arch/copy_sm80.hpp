// CUTLASS's header of this name has cp.async, which no kernel that the emulator runs takes from there.
#pragma once

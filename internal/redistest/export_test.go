package redistest

// ClockLibrary is the shim on its own, to be tried on a program that shows more clocks than Redis does.
var ClockLibrary = clockLibrary

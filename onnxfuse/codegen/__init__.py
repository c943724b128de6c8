"""From a fused op's body to C++: the typed program, the operators it knows, the emitter."""

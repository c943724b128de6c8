"""Code generation: from a fused op's body to C++, by the typed program, the operator tables and the emitter."""

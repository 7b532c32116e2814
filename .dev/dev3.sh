cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release > $OUT/cmake.log 2>&1 || { tail -20 $OUT/cmake.log; exit 1; }
P=/tmp/pnew; cmake --build build/gpu > $OUT/build.log 2>&1 || { tail -30 $OUT/build.log; exit 1; }
mkdir -p $P; cp -r src/jali $P/; rm -f $P/jali/_core*.so; cmake --install build/gpu --component python --prefix $P > /dev/null
export PYTHONPATH=$P
for c in "8 float64" "16 float64" "16 float32" "24 float32"; do set -- $c; python3 benchmarks/cg.py --device cuda --extent $1 --precision $2 | grep -v "every 1 \|every 32"; done | tee $OUT/cg.txt
timeout 480 make test-gpu GPU_PYTEST='python3 -m pytest -o addopts=-ra -p no:cacheprovider -n 16 --dist loadgroup --max-worker-restart 0 -m "not full and not mpi"' > $OUT/test.log 2>&1
echo rc $?; tail -40 $OUT/test.log
